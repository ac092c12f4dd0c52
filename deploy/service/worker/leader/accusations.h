// Who is to go where a collective failed and nobody is known to be lost: a link between two workers
// may be cut while both hear the leader.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

namespace tributary {

/// Workers say whom they waited for in vain. One slot is closed for it, never both ends of a link.
/// A word is about one generation of the pool: what comes later than the next one is about workers
/// that are gone, or were held up by them.
class Accusations {
 public:
  /// The pool's generation is `generation`, or a later one. Words about others do not count.
  void begin(std::uint64_t generation);
  /// `rank` waited for `others` in vain. Only its last word counts.
  void add(std::uint64_t generation, int rank, std::span<const int> others);
  /// Who was waited for by most; of several the highest rank. Rank 0 stays: a worker that waited
  /// for it goes itself.
  [[nodiscard]] std::optional<int> verdict() const;

 private:
  std::uint64_t generation_ = 0;
  std::map<int, std::set<int>> waited_for_;  // by who waited
};

}  // namespace tributary
