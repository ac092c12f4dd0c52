#include "deploy/service/control/ended_sequences.h"

namespace tributary {

void EndedSequences::add(SequenceId id, SequenceEnd reason) {
  const auto [entry, is_new] = reasons_.try_emplace(id);
  entry->second.reason = reason;
  if (!is_new) return;
  entry->second.mark = next_mark_;
  order_.push_back({id, next_mark_++});
  // erase() leaves its mark in the order, so this, too, is bounded by the capacity.
  while (order_.size() > capacity_) {
    const Mark oldest = order_.front();
    order_.pop_front();
    const auto found = reasons_.find(oldest.id);
    if (found != reasons_.end() && found->second.mark == oldest.mark) reasons_.erase(found);
  }
}

std::optional<SequenceEnd> EndedSequences::find(SequenceId id) const {
  const auto found = reasons_.find(id);
  if (found == reasons_.end()) return std::nullopt;
  return found->second.reason;
}

}  // namespace tributary
