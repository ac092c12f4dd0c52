// The source of the metrics and of the cluster's report: the control plane at one moment.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/http/http_server.h"
#include "deploy/service/control/admissions.h"
#include "deploy/service/control/pool_registry.h"

namespace tributary {

struct TierView {
  const PoolRegistry& registry;
  const Admissions& admissions;
  std::uint64_t pools_registered = 0;
  std::uint64_t pools_refused = 0;
  const HttpTraffic& http;
  int connections = 0;
  double scrape_seconds = 0;  // the last scrape's cost; 0: none yet
  Time start;
  Time now;
  std::string_view version;
  std::uint64_t log_lines_dropped = 0;
};

inline constexpr std::size_t kWorkerStates = 6;
/// A worker is in its pool's state, unless the pool lives and has not heard from the worker for a
/// second (two of its beats), goes on without it (`lost`; `left`, if the worker was asked to end),
/// or serves and is emptying this worker; a drained one holds nothing.
enum class WorkerState { kServing, kDraining, kDrained, kLost, kLeft, kSilent };
/// `serving`, `draining`, `drained`, `lost`, `left`, `silent`.
[[nodiscard]] std::string_view worker_state_name(WorkerState state) noexcept;

struct WorkerView {
  const WorkerInfo* about = nullptr;
  Heartbeat::Worker beat;  // zeros before the first heartbeat
  double age_seconds = 0;  // since the worker was heard, through its pool
  WorkerState state = WorkerState::kServing;
};
[[nodiscard]] std::vector<WorkerView> workers_of(const Pool& pool, Time now);

}  // namespace tributary
