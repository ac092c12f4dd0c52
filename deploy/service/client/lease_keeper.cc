#include "deploy/service/client/lease_keeper.h"

#include <vector>

#include "deploy/service/client/control_call.h"

namespace tributary {

LeaseKeeper::LeaseKeeper(WorkerConnections& connections, Clock& clock)
    : connections_(connections), clock_(clock), thread_(clock, [this] { run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LeaseKeeper::keep(const SequenceHandle& sequence) {
  {
    const std::scoped_lock lock(mutex_);
    table_.keep(sequence, clock_.now());
  }
  changed_.notify_all();
}

void LeaseKeeper::take_over(const SequenceHandle& sequence) {
  {
    const std::scoped_lock lock(mutex_);
    table_.take_over(sequence, clock_.now());
  }
  changed_.notify_all();
}

void LeaseKeeper::update(const SequenceHandle& sequence) {
  const std::scoped_lock lock(mutex_);
  table_.update(sequence);
}

void LeaseKeeper::forget(const SequenceHandle& sequence) {
  const std::scoped_lock lock(mutex_);
  table_.forget(sequence);
}

void LeaseKeeper::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const std::optional<Time> next = table_.next();
    if (!next) {
      clock_.wait(changed_, lock, [this] { return stop_ || table_.next().has_value(); });
    } else if (clock_.now() < *next) {
      clock_.wait_until(changed_, lock, *next);
    } else {
      renew(lock);
    }
  }
}

void LeaseKeeper::renew(std::unique_lock<std::mutex>& lock) {
  const LeaseTable::Round round = table_.take_due(clock_.now());
  lock.unlock();
  std::vector<ControlRequest> requests;
  requests.reserve(round.due.size());
  for (const LeaseTable::Renewal& renewal : round.due) {
    requests.push_back(
        {.op = wire::ControlOp::kRenew, .sequence = &renewal.sequence, .alone = renewal.alone});
  }
  const auto outcomes =
      control(connections_, requests, Deadline::after(round.began, round.patience));
  lock.lock();
  for (std::size_t i = 0; i < round.due.size(); ++i) {
    table_.answered(round.due[i], outcomes[i].status.code(), outcomes[i].home, round.began);
  }
}

}  // namespace tributary
