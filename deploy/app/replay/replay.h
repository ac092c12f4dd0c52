// `tributary replay`: continuous batching of a request trace through a pool, attention only, with
// generated rows and queries.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
#include "core/interface/communicator.h"
#include "core/model/model_shape.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "core/workload/trace.h"
#include "deploy/app/replay/replay_report.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

struct ReplayOptions {
  ServiceOptions service;  // given: replays through it instead of a pool of its own
  int clients = 1;         // of the service
  std::optional<std::filesystem::path> trace;  // none: the built-in workload
  std::string shape = "deepseek-v2-lite";
  int layers = 1;
  int heads = 0;               // 0: the shape's
  std::int64_t requests = 64;  // the first of the trace; 0: all
  double length_scale = 1;     // prompt and output lengths are multiplied by it, at least 1 token
  double kv_gib = 1;           // page memory of each worker
  int max_batch = 64;          // running sequences at most
  int tokens_per_step = 1;     // new tokens of a sequence in a step
  SpreadPolicy spread = SpreadPolicy::kAuto;
  Exchange exchange = Exchange::kAuto;
  int leaf_tokens = 2048;
  std::string costs = "cpu";  // the constants for placement and exchange, as for a worker
  std::string backend = "cpu";
  int threads = 0;  // of each worker; 0: its share of the cores
  BackendOptions backend_options;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  std::uint64_t seed = 1;
  double speed = 0;            // arrivals at `speed` times the trace's pace; 0: all at once
  double canary_rate = 0.001;  // share of (token, layer) recomputed in float64
  int workers = 0;             // threads, where no launcher started the program
  std::string listen;          // of workers that are processes, see host_pool()
  std::string advertise;       // as of a worker
  int round_timeout_ms = 60'000;
  std::optional<std::filesystem::path> json;
};

/// The trace's requests according to the options: the first `requests`, scaled.
[[nodiscard]] std::vector<TraceRequest> replay_requests(const ReplayOptions& options);

/// Replays on a pool of its own. Runs on every rank; rank 0 gets the report, the others an empty
/// one. `network` as of host_pool(). Throws Error (the same on every rank if a worker failed).
/// Draws a bar on `terminal`, which may be null.
[[nodiscard]] ReplayReport replay(const ReplayOptions& options,
                                  const std::vector<TraceRequest>& requests,
                                  Communicator& communicator,
                                  const std::shared_ptr<LocalNetwork>& network,
                                  std::FILE* terminal);
/// Through the service that the options name: the same requests, rows and queries, so the same
/// digest. Throws Error.
[[nodiscard]] ReplayReport replay_service(const ReplayOptions& options,
                                          const std::vector<TraceRequest>& requests,
                                          std::FILE* terminal);

}  // namespace tributary
