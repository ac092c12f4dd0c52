// The angles of RoPE: one token's are shared by all its heads, and a step's by all layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace tributary::cpu {

/// Cosines and sines of position * frequency for the tokens of a call. They are kept, because every
/// layer of a step rotates queries and keys by the same ones, and the sines of 64 tokens take as
/// long as reading a quarter of their queries from memory.
class RopeAngles {
 public:
  /// Tokens of one prepare() at most: 256 KiB of angles with DeepSeek's 32 pairs.
  static constexpr std::size_t kMostTokens = 256;

  void prepare(ThreadPool& pool, std::span<const std::int64_t> positions,
               std::span<const double> frequencies);

  /// The cosines of a token, [2 * frequencies]: each twice, for both members of its pair.
  [[nodiscard]] const double* cosines(std::size_t token) const noexcept {
    return angles_.data() + token * 4 * frequencies_.size();
  }
  /// The same: -sine, then sine.
  [[nodiscard]] const double* sines(std::size_t token) const noexcept {
    return cosines(token) + 2 * frequencies_.size();
  }

 private:
  std::vector<std::int64_t> positions_;
  std::vector<double> frequencies_;
  std::vector<double> angles_;
};

}  // namespace tributary::cpu
