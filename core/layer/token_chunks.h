// Checks the tokens of a layer's call and cuts them into chunks that the workspace holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace tributary {

inline void check_tokens(std::string_view operation, std::int64_t tokens) {
  if (tokens < 0) {
    fail(ErrorCode::kInvalidArgument, "{}: {} tokens, must be at least 0", operation, tokens);
  }
}

inline void check_positions(std::string_view operation, std::int64_t tokens,
                            std::span<const std::int64_t> positions) {
  check_tokens(operation, tokens);
  if (positions.size() != static_cast<std::size_t>(tokens)) {
    fail(ErrorCode::kInvalidArgument, "{}: {} positions for {} tokens", operation, positions.size(),
         tokens);
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0) {
      fail(ErrorCode::kInvalidArgument, "{}: position {} of token {}, must be at least 0",
           operation, positions[i], i);
    }
  }
}

/// Calls work(begin, count) for consecutive chunks of at most `limit` tokens.
template <typename Work>
void for_chunks(std::int64_t tokens, std::int64_t limit, const Work& work) {
  for (std::int64_t begin = 0; begin < tokens; begin += limit) {
    work(begin, std::min(limit, tokens - begin));
  }
}

inline std::span<const std::int64_t> part(std::span<const std::int64_t> positions,
                                          std::int64_t begin, std::int64_t count) {
  return positions.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

}  // namespace tributary
