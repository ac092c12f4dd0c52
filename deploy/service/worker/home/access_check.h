// Checks that a client's token is that of its sequence. Accepted tokens are cached: a MAC for every
// item of every layer would cost more than the rest of its processing on arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "comm/wire/access_token.h"

namespace tributary {

/// Used by one thread.
class AccessCheck {
 public:
  explicit AccessCheck(const wire::Token& pool_key) : key_(pool_key) {}

  [[nodiscard]] bool allowed(std::uint64_t sequence_id, const wire::Token& token);

 private:
  /// More than the sequences that a pool runs; when it is full, tokens of ended ones are dropped.
  static constexpr std::size_t kKept = 65'536;
  wire::Token key_;
  std::unordered_map<std::uint64_t, wire::Token> known_;
};

}  // namespace tributary
