#include "deploy/service/control/tier_view.h"

namespace tributary {

namespace {

constexpr double kSilentSeconds = 1;

bool is_empty(const Heartbeat::Worker& worker) {
  return worker.pages_used == 0 && worker.pages_reserved == 0 && worker.homes == 0;
}

}  // namespace

std::string_view worker_state_name(WorkerState state) noexcept {
  switch (state) {
    case WorkerState::kServing:
      return "serving";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kDrained:
      return "drained";
    case WorkerState::kLost:
      return "lost";
    case WorkerState::kLeft:
      return "left";
    case WorkerState::kSilent:
      return "silent";
  }
  return "unknown";
}

std::vector<WorkerView> workers_of(const Pool& pool, Time now) {
  const double pool_age = seconds_between(pool.heard, now);
  std::vector<WorkerView> workers(pool.about.workers.size());
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    WorkerView& worker = workers[rank];
    worker.about = &pool.about.workers[rank];
    if (pool.heartbeat) worker.beat = pool.heartbeat->workers[rank];
    const double worker_age = static_cast<double>(worker.beat.heartbeat_age_ms) / 1e3;
    worker.age_seconds = pool_age + worker_age;
    if (pool.state == PoolState::kLost || worker.beat.lost) {
      const bool asked = pool.state != PoolState::kLost && worker.beat.left;
      worker.state = asked ? WorkerState::kLeft : WorkerState::kLost;
    } else if (worker_age > kSilentSeconds) {
      worker.state = WorkerState::kSilent;
    } else if (worker.beat.draining && is_empty(worker.beat)) {
      worker.state = WorkerState::kDrained;
    } else if (pool.state == PoolState::kDraining || worker.beat.draining) {
      worker.state = WorkerState::kDraining;
    }
  }
  return workers;
}

}  // namespace tributary
