#include "deploy/service/worker/leader/lease_book.h"

#include <iterator>

namespace tributary {

void LeaseBook::add(SequenceId id, Time now) {
  remove(id);
  order_.push_back({id, now});
  where_.emplace(id, std::prev(order_.end()));
}

void LeaseBook::touch(SequenceId id, Time then) {
  const auto found = where_.find(id);
  if (found == where_.end() || then < found->second->touched) return;
  found->second->touched = then;
  auto next = order_.end();
  while (std::prev(next)->touched > then) --next;
  if (next != found->second) order_.splice(next, order_, found->second);
}

void LeaseBook::remove(SequenceId id) {
  const auto found = where_.find(id);
  if (found == where_.end()) return;
  order_.erase(found->second);
  where_.erase(found);
}

std::optional<SequenceId> LeaseBook::expired(Time now) const {
  if (order_.empty() || now < order_.front().touched + lease_) return std::nullopt;
  return order_.front().id;
}

std::optional<Time> LeaseBook::next_end() const {
  if (order_.empty()) return std::nullopt;
  return order_.front().touched + lease_;
}

}  // namespace tributary
