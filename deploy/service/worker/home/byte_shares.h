// A bound on bytes, of which no sequence takes more than its share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>

namespace tributary {

/// Not synchronised.
class ByteShares {
 public:
  /// Bytes of one sequence.
  using Share = std::pair<std::uint64_t, std::size_t>;

  explicit ByteShares(std::size_t most) : most_(most) {}

  /// Takes all of them, or nothing: no more than `most` in all, nor an eighth of it for a sequence
  /// that holds some already.
  [[nodiscard]] bool take(std::span<const Share> shares) {
    std::size_t bytes = 0;
    std::size_t taken = 0;
    for (; taken < shares.size(); ++taken) {
      const auto& [sequence, part] = shares[taken];
      std::size_t& of_it = of_sequence_[sequence];
      if (of_it != 0 && of_it + part > most_ / kShares) break;
      of_it += part;
      bytes += part;
    }
    if (taken == shares.size() && bytes <= most_ && bytes_ <= most_ - bytes) {
      bytes_ += bytes;
      return true;
    }
    give_back_shares(shares.first(taken));
    ++refused_;
    return false;
  }
  void give_back(std::span<const Share> shares) { bytes_ -= give_back_shares(shares); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// How often there was no room, so far.
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }

 private:
  static constexpr std::size_t kShares = 8;

  std::size_t give_back_shares(std::span<const Share> shares) {
    std::size_t bytes = 0;
    for (const auto& [sequence, part] : shares) {
      bytes += part;
      const auto found = of_sequence_.find(sequence);
      if (found != of_sequence_.end() && (found->second -= part) == 0) of_sequence_.erase(found);
    }
    return bytes;
  }

  const std::size_t most_;
  std::size_t bytes_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> of_sequence_;
  std::uint64_t refused_ = 0;
};

}  // namespace tributary
