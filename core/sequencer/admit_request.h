// The request for a new sequence, from an engine's own sequencer or through a service.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "core/placement/spread_policy.h"

namespace tributary {

/// Names of a prompt's full blocks from its beginning on, so that sequences with equal beginnings
/// share rows. Who knows a block's name reads its rows, and who names one is trusted by all who use
/// the same salt.
struct Prefix {
  std::int32_t block_tokens = 0;  ///< of a block: a multiple of the page (64) that divides the leaf
  std::int32_t key_bytes = 0;     ///< of a key: 16 to 32
  /// One for each block, one after the other: for all tokens up to the block's end (a chained hash,
  /// as vLLM and Mooncake make it).
  std::string keys = {};
  std::string cache_salt = {};  ///< at most 64 bytes; other salts, other names

  /// How many blocks have a key.
  [[nodiscard]] std::int64_t blocks() const noexcept {
    return key_bytes > 0 ? std::ssize(keys) / key_bytes : 0;
  }
  /// The key of a block, which is below blocks().
  [[nodiscard]] std::string_view key(std::int64_t block) const {
    const auto bytes = static_cast<std::size_t>(key_bytes);
    return std::string_view(keys).substr(static_cast<std::size_t>(block) * bytes, bytes);
  }
  /// The next block's key. Throws kInvalidArgument if it has not as many bytes as the first.
  void add_key(std::string_view bytes);

  friend bool operator==(const Prefix&, const Prefix&) = default;  ///< all fields
};

/// A running sequence that a new one is forked from: it begins with the same rows.
struct Parent {
  std::uint64_t id = 0;                     ///< 0: none
  std::uint32_t epoch = 0;                  ///< as the caller knows it
  std::int64_t length = 0;                  ///< rows that both have; at most the parent's
  std::array<std::uint8_t, 16> token = {};  ///< of its owner: a service asks for it

  friend bool operator==(const Parent&, const Parent&) = default;  ///< all fields
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
  /// The prompt begins with the parent's rows, which are not pushed again, and the new sequence
  /// lies where they do: `spread` is the parent's, and no block is looked for. At least one token
  /// more.
  Parent parent = {};

  friend bool operator==(const AdmitRequest&, const AdmitRequest&) = default;  ///< all fields
};

}  // namespace tributary
