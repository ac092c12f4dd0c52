#include "deploy/service/control/cluster_report.h"

#include <chrono>
#include <utility>

#include "deploy/service/control/run_name.h"
#include "deploy/service/protocol/json_object.h"
#include "deploy/service/protocol/pool_metrics_json.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {

using nlohmann::json;

namespace {

std::int64_t ms_between(Time begin, Time end) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(end - begin).count();
}

json workers_json(const Pool& pool, Time now) {
  json workers = json::array();
  for (const WorkerView& worker : workers_of(pool, now)) {
    workers.push_back({{"rank", worker.about->rank},
                       {"host", worker.about->host},
                       {"address", worker.about->address},
                       {"backend", worker.about->backend},
                       {"threads", worker.about->threads},
                       {"state", worker_state_name(worker.state)},
                       {"pages",
                        {{"total", pool.about.pages_per_worker},
                         {"used", worker.beat.pages_used},
                         {"reserved", worker.beat.pages_reserved},
                         {"idle", worker.beat.pages_idle}}},
                       {"homes", worker.beat.homes},
                       {"heartbeat_age_ms", static_cast<std::int64_t>(worker.age_seconds * 1e3)}});
  }
  return workers;
}

json pool_json(const std::string& name, const Pool& pool, Time now) {
  json object = {{"name", name},
                 {"run", run_name(pool.about.run)},
                 {"state", pool_state_name(pool.state)},
                 {"since_ms", ms_between(pool.since, now)},
                 {"heartbeat_age_ms", ms_between(pool.heard, now)},
                 {"lease_ms", pool.about.lease_ms},
                 {"sequences", pool.sequences.size()},
                 {"transport", pool.about.transport},
                 {"transport_reason", pool.about.transport_reason},
                 {"costs", pool.about.costs},
                 {"communicator", pool.about.communicator},
                 {"shape", shape_to_json(pool.about.shape)},
                 {"workers", workers_json(pool, now)},
                 {"metrics", nullptr}};
  if (pool.heartbeat) object["metrics"] = metrics_to_json(pool.heartbeat->metrics);
  if (pool.state == PoolState::kLost) object["lost_because"] = pool.lost_because;
  return object;
}

}  // namespace

std::string cluster_json(const TierView& tier) {
  json pools = json::array();
  for (const auto& [name, pool] : tier.registry.pools()) {
    pools.push_back(pool_json(name, pool, tier.now));
  }
  json admissions = {{"pending", tier.admissions.pending()},
                     {"repeated", tier.admissions.repeated()}};
  for (std::size_t i = 0; i < tier.admissions.results().size(); ++i) {
    const std::uint64_t count = tier.admissions.results()[i];
    const auto code = static_cast<ErrorCode>(i);
    if (code == ErrorCode::kOk) {
      admissions["admitted"] = count;
    } else if (count > 0) {
      admissions[std::string(error_code_name(code))] = count;
    }
  }
  return json_text({{"version", tier.version},
                    {"incarnation", tier.registry.ids().incarnation()},
                    {"uptime_ms", ms_between(tier.start, tier.now)},
                    {"ready", any_serving(tier.registry)},
                    {"sequences", sequences_of(tier.registry)},
                    {"admissions", std::move(admissions)},
                    {"histogram_bounds", {{"seconds", kDurationBuckets}, {"batch", kBatchBuckets}}},
                    {"pools", std::move(pools)}});
}

}  // namespace tributary
