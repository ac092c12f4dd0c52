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
#include "deploy/runtime/shared_options.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

struct ReplayOptions {
  ServiceOptions service;
  int clients = 1;
  std::optional<std::filesystem::path> trace;
  std::string shape = "deepseek-v2-lite";
  int layers = 1;
  int heads = 0;
  std::int64_t requests = 64;
  double length_scale = 1;  // lengths stay at least 1 token
  double kv_gib = 1;
  bool no_prefixes = false;
  int max_batch = 64;
  int tokens_per_step = 1;
  SpreadPolicy spread = SpreadPolicy::kAuto;
  Exchange exchange = Exchange::kAuto;
  int leaf_tokens = 0;
  std::string costs = "cpu";
  std::string backend = "cpu";
  int threads = 0;
  BackendOptions backend_options;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  int topk = -1;
  std::uint64_t seed = 1;
  double speed = 0;
  double canary_rate = 0.001;
  int workers = 0;
  std::string listen;  // of workers that are processes, see host_pool()
  std::string advertise;
  int failure_timeout_ms = 60'000;
  double tpot_ms = 50;
  std::optional<std::filesystem::path> json;
  std::optional<std::filesystem::path> baseline;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    visit_trace(v, trace, requests, seed, json);
    v(baseline, "--baseline", "FILE",
      "Compare with the report of another run (--json): settings that differ, and ratios");
    v(tpot_ms, "--tpot-ms", {1e-3, 1e6},
      "Mean time per output token, in ms, up to which a request counts for the goodput");
    service.for_each_option(v, kInsteadOfOwnPool, /*optional=*/true);
    v(clients, "--clients", {1, 64},
      "Clients of the service, each with its share of the requests and of the batch",
      {.needs = "--service"});
    auto own = v.with({.excludes = "--service"}).in_group("A pool of its own");
    visit_workers(own, workers);
    visit_addresses(own, listen, advertise);
    visit_backend(own, backend, threads);
    backend_options.for_each_option(own);
    v(spread, "--spread", "auto|single|all",
      "Where sequences lie: each on one worker (single), on as many as it has leaves (all), or as "
      "makes rounds short");
    visit_exchange(own, exchange);
    visit_pool_leaf_tokens(own, leaf_tokens);
    visit_costs(own, costs);
    visit_shape(own, shape);
    own(layers, "--layers", {1, 1024}, "Layers that every step runs");
    own(heads, "--heads", {0, 1024}, "Attention heads", {.shown_default = "0, the shape's"});
    v(length_scale, "--length-scale", {1e-6, 1e3}, "Multiply prompt and output lengths by this");
    visit_kv_gib(own, kv_gib, "Page memory of each worker in GiB");
    v(no_prefixes, "--no-prefixes",
      "Name no blocks of prompts, though the trace has hash_ids: every prompt is pushed whole");
    v(max_batch, "--max-batch", {1, 1 << 20}, "Sequences decoding at the same time, at most");
    v(tokens_per_step, "--tokens-per-step", {1, kMaxStepTokens},
      "New tokens of a sequence in one step, as with speculative decoding");
    visit_rows(own, row_format);
    visit_query(own, query_dtype);
    visit_topk(own, topk);
    v(speed, "--speed", {0, 1e9}, "Arrivals at this many times the trace's pace",
      {.shown_default = "0, as capacity allows"});
    v(canary_rate, "--canary-rate", {0, 1},
      "Share of outputs that are recomputed in float64 at the end");
    own(failure_timeout_ms, "--failure-timeout-ms", {1'000, kMaxOptionMs},
        "A worker that is silent or holds a round up for so long is lost; worker 0 ends the pool");
  }
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
