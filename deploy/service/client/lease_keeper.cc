#include "deploy/service/client/lease_keeper.h"

#include <algorithm>
#include <vector>

#include "deploy/service/client/control_call.h"

namespace tributary {
namespace {

Duration period(const SequenceHandle& sequence) {
  return std::chrono::milliseconds(std::max(1, sequence.lease_ms / 3));
}

/// A renewal takes effect when it arrives: the answer only says which sequences to forget. So a
/// home that answers late, or not at all, does not delay the renewals at other homes.
constexpr std::chrono::milliseconds kPatience{200};

}  // namespace

LeaseKeeper::LeaseKeeper(WorkerConnections& connections)
    : connections_(connections), thread_([this] { run(); }) {}

LeaseKeeper::~LeaseKeeper() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LeaseKeeper::keep(const SequenceHandle& sequence) {
  keep(sequence, std::chrono::steady_clock::now() + period(sequence));
}

void LeaseKeeper::take_over(const SequenceHandle& sequence) {
  keep(sequence, std::chrono::steady_clock::now());
}

void LeaseKeeper::keep(const SequenceHandle& sequence, Time due) {
  {
    const std::scoped_lock lock(mutex_);
    kept_.insert_or_assign(sequence.id, Kept{sequence, due});
  }
  changed_.notify_all();
}

void LeaseKeeper::update(const SequenceHandle& sequence) {
  const std::scoped_lock lock(mutex_);
  const auto found = kept_.find(sequence.id);
  if (found != kept_.end()) found->second.sequence = sequence;
}

void LeaseKeeper::forget(SequenceId id) {
  const std::scoped_lock lock(mutex_);
  kept_.erase(id);
}

void LeaseKeeper::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (kept_.empty()) {
      changed_.wait(lock, [this] { return stop_ || !kept_.empty(); });
      continue;
    }
    const auto next =
        std::ranges::min_element(kept_, {}, [](const auto& entry) { return entry.second.due; });
    const auto due = next->second.due;
    if (std::chrono::steady_clock::now() < due) {
      changed_.wait_until(lock, due);
      continue;
    }
    renew(lock);
  }
}

/// All renewals that are due within a fifth of their period go together.
void LeaseKeeper::renew(std::unique_lock<std::mutex>& lock) {
  const auto now = std::chrono::steady_clock::now();
  std::vector<SequenceHandle> due;
  Duration patience = kPatience;
  for (auto& [id, kept] : kept_) {
    patience = std::min(patience, period(kept.sequence));
    if (kept.due - period(kept.sequence) / 5 > now) continue;
    due.push_back(kept.sequence);
    kept.due = now + period(kept.sequence);
  }
  lock.unlock();
  std::vector<ControlRequest> requests;
  requests.reserve(due.size());
  for (const SequenceHandle& sequence : due) {
    requests.push_back({.op = wire::ControlOp::kRenew, .sequence = &sequence});
  }
  const auto outcomes = control(connections_, requests, Deadline::after(patience));
  lock.lock();
  for (std::size_t i = 0; i < due.size(); ++i) {
    const ErrorCode code = outcomes[i].status.code();
    const auto kept = kept_.find(due[i].id);
    if (code == ErrorCode::kOk || kept == kept_.end()) continue;
    if (code == ErrorCode::kNotFound || code == ErrorCode::kPoolLost ||
        code == ErrorCode::kPermissionDenied) {
      kept_.erase(kept);
    } else {
      // It may not have arrived: the next one comes sooner, while the lease still runs.
      kept->second.due = std::min(kept->second.due, now + period(due[i]) / 4);
    }
  }
}

}  // namespace tributary
