#include "deploy/service/worker/leader/leader_outbox.h"

#include <iterator>

namespace tributary {

void LeaderOutbox::refuse(int rank, std::uint64_t ticket, std::uint32_t index,
                          const wire::Outcome& outcome) {
  if (!refusals_.empty()) {
    auto& [last_rank, last] = refusals_.back();
    if (last_rank == rank && last.ticket == ticket && last.outcome == outcome) {
      last.items.push_back(index);
      return;
    }
  }
  refusals_.emplace_back(
      rank, wire::ItemsRefused{.ticket = ticket, .items = {index}, .outcome = outcome});
}

void LeaderOutbox::order_done() {
  const auto move_all = [](auto& from, auto& to) {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
    from.clear();
  };
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
