#include "deploy/service/worker/leader/leader_outbox.h"

#include <iterator>

namespace tributary {

void LeaderOutbox::add(Refusals& refusals, int rank, wire::ItemsRefused refused) {
  if (!refusals.empty()) {
    auto& [last_rank, last] = refusals.back();
    if (last_rank == rank && last.ticket == refused.ticket && last.outcome == refused.outcome &&
        last.home == refused.home) {
      last.items.push_back(refused.items.front());
      return;
    }
  }
  refusals.emplace_back(rank, std::move(refused));
}

void LeaderOutbox::order_done() {
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    from.clear();
  };
  move_all(refusals_after_order_, refusals_);
  move_all(answers_after_order_, answers_);
  move_all(words_after_order_, words_);
}

void LeaderOutbox::send(const LeaderLinks& links) {
  for (auto& [rank, refused] : refusals_) links.refuse(rank, std::move(refused));
  for (auto& [rank, verdicts] : answers_) links.answer(rank, std::move(verdicts));
  for (const FromPool& word : words_) links.tell(word);
  refusals_.clear();
  answers_.clear();
  words_.clear();
}

}  // namespace tributary
