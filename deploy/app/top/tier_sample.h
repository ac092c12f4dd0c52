// A tier at one moment, from its control plane's GET /v1/cluster and GET /metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "deploy/service/protocol/pool_metrics.h"

namespace tributary {

struct TierSample {
  struct Worker {
    int rank = 0;
    std::string host;
    std::string backend;
    int threads = 0;
    std::string state;
    std::int64_t pages_total = 0, pages_used = 0, pages_reserved = 0;
    std::int64_t homes = 0;
    std::int64_t heartbeat_age_ms = 0;
  };
  struct Pool {
    std::string name;
    std::string run;  // another after a restart: its totals start again
    std::string state;
    std::string lost_because;
    std::string costs, communicator;
    std::int64_t sequences = 0;
    std::int64_t heartbeat_age_ms = 0;   // of the metrics
    std::optional<PoolMetrics> metrics;  // none before its first heartbeat
    std::vector<Worker> workers;
  };
  Time taken = std::chrono::steady_clock::now();
  std::string version;
  std::int64_t uptime_ms = 0;
  bool ready = false;
  std::int64_t sequences = 0;
  std::uint64_t admitted = 0, refused = 0;
  std::int64_t pending = 0;
  double connections = 0, http_requests = 0;
  std::vector<Pool> pools;
};

/// Throws kMalformedInput, naming the field, for text that no control plane of this version sends.
[[nodiscard]] TierSample read_tier(std::string_view cluster_json, std::string_view metrics_text);

}  // namespace tributary
