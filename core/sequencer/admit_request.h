// The request for a new sequence, from an engine's own sequencer or through a service.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/placement/spread_policy.h"

namespace tributary {

/// Names of a prompt's full blocks from its beginning on, so that sequences with equal beginnings
/// share rows. Who knows a block's name reads its rows, and who names one is trusted by all who use
/// the same salt.
struct Prefix {
  std::int32_t block_tokens = 0;  ///< of a block: a multiple of the page (64) that divides the leaf
  /// One for each block, of 16 to 32 bytes each, all alike: for all tokens up to the block's end (a
  /// chained hash, as vLLM and Mooncake make it).
  std::vector<std::string> keys = {};
  std::string salt = {};  ///< at most 64 bytes; other salts, other names

  friend bool operator==(const Prefix&, const Prefix&) = default;  ///< all fields
};

/// The needs of a new sequence.
struct AdmitRequest {
  std::int64_t prompt_tokens = 0;             ///< rows that come first; at least 0
  std::int64_t max_new_tokens = 0;            ///< room is reserved for them too; the sum: 1 or more
  SpreadPolicy spread = SpreadPolicy::kAuto;  ///< over which workers
  /// A service admits requests of one key once; if it is empty, the client library draws one.
  std::string idempotency_key = {};
  /// Known to the one who repeats a request alone: a service gives a repeat the first answer, which
  /// holds a token, with the first one's secret only. If it is empty, the client library gives its
  /// own, which each TierClient draws once.
  std::string idempotency_secret = {};
  Prefix prefix = {};  ///< without keys: nothing is looked for, and nothing named

  friend bool operator==(const AdmitRequest&, const AdmitRequest&) = default;  ///< all fields
};

}  // namespace tributary
