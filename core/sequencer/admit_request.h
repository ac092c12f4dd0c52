// The request for a new sequence, from an engine's own sequencer or through a service.
#pragma once

#include <cstdint>
#include <string>

#include "core/placement/spread_policy.h"

namespace tributary {

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

  friend bool operator==(const AdmitRequest&, const AdmitRequest&) = default;  ///< all fields
};

}  // namespace tributary
