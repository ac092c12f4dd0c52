// The control plane's memory of ended sequences, so that a late query gets the reason and not only
// "unknown". Bounded: the oldest are forgotten.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/cache/sequence_table.h"

namespace tributary {

enum class SequenceEnd { kFreed, kLeaseExpired, kPoolLost };

class EndedSequences {
 public:
  explicit EndedSequences(std::size_t capacity) : capacity_(capacity) {}

  /// A later reason replaces an earlier one.
  void add(SequenceId id, SequenceEnd reason);
  /// The sequence runs again: its pool came back.
  void erase(SequenceId id) { reasons_.erase(id); }
  [[nodiscard]] std::optional<SequenceEnd> find(SequenceId id) const;
  [[nodiscard]] std::size_t size() const noexcept { return reasons_.size(); }

 private:
  struct Ended {
    SequenceEnd reason = SequenceEnd::kFreed;
    std::size_t mark = 0;  // of its entry in order_; later entries of the same id do not count
  };

  std::size_t capacity_;
  std::size_t next_mark_ = 0;
  std::unordered_map<SequenceId, Ended> reasons_;
  struct Mark {
    SequenceId id = 0;
    std::size_t mark = 0;
  };
  std::deque<Mark> order_;
};

}  // namespace tributary
