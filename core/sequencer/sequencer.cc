#include "core/sequencer/sequencer.h"

#include <utility>

namespace tributary {

Sequencer::Sequencer(const SequencerConfig& config)
    : ledger_(config.placement, config.options.max_step_ms * 1e3, config.pages_per_worker, order_),
      blocks_(ledger_),
      copies_(config.placement.model.layers, ledger_, order_),
      steps_(ledger_, order_),
      moves_(config.placement.model.layers, ledger_, blocks_, copies_, order_),
      sequences_(config.incarnation, ledger_, blocks_, steps_, moves_, copies_, order_),
      drain_(ledger_),
      losses_(ledger_, steps_, moves_, copies_, sequences_) {
  order_.round = 1;
}

Order Sequencer::take_order() {
  steps_.order_taken();
  moves_.order_taken();
  copies_.order_taken();
  Order next;
  next.round = order_.round + 1;
  return std::exchange(order_, std::move(next));
}

void Sequencer::order_ended(bool ok) {
  moves_.order_ended(ok);
  copies_.order_ended(ok);
}

}  // namespace tributary
