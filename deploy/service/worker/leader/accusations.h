// Who is to go where a collective failed and nobody is known to be lost: a link between two workers
// may be cut while both hear the leader.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tributary {

/// Workers say whom they waited for in vain. One slot is closed for it, never both ends of a link.
class Accusations {
 public:
  /// `rank` waited for `others` in vain. Only its last word counts.
  void add(int rank, std::span<const int> others);
  /// Who was waited for by most; of several the highest rank. Rank 0 stays: a worker that waited
  /// for it goes itself.
  [[nodiscard]] std::optional<int> verdict() const;
  void clear() { waited_for_.clear(); }

 private:
  std::map<int, std::vector<int>> waited_for_;  // by who waited
};

}  // namespace tributary
