// The options of `tributary simulate`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "core/sequencer/sequencer_options.h"
#include "deploy/predict/simulate/arrivals.h"
#include "deploy/runtime/shared_options.h"

namespace tributary {

struct RateList {
  std::vector<double> values;
};

struct SimulateOptions {
  std::optional<std::filesystem::path> trace;
  std::int64_t requests = 0;
  double length_scale = 1;
  std::uint64_t seed = 1;
  // The tier.
  int pools = 1;
  int workers = 8;
  int workers_per_node = 8;
  double kv_gib = 100;
  std::string costs = "h200";
  std::string shape = "deepseek-v3";
  int leaf_tokens = 0;
  int topk = -1;
  Exchange exchange = Exchange::kAuto;
  double other_ms = 0;
  SequencerOptions sequencer;
  PrefillConfig prefill;
  // The experiment.
  std::vector<SpreadPolicy> spread = {SpreadPolicy::kSingle, SpreadPolicy::kAll,
                                      SpreadPolicy::kAuto};
  RateList rates;
  std::int64_t running = 0;
  double tpot_ms = 50;
  bool search = false;
  double wait_ms = 1000;
  double warmup_s = 30;
  double measure_s = 60;
  std::int64_t max_waiting = 4096;
  std::int64_t check_every = 500;
  std::optional<std::filesystem::path> json;
  std::optional<std::filesystem::path> svg;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    visit_trace(v, trace, requests, seed, json, "0; 2000 of the built-in workload");
    v(svg, "--svg", "FILE", "Draw p99 time per output token against the rate, as an SVG file");
    v(length_scale, "--length-scale", {1e-6, 1e3}, "Multiply prompt and output lengths by this");
    v(pools, "--pools", {1, 65'536}, "Pools of the tier");
    v(workers, "--workers", {1, 1024}, "Workers of each pool");
    v(workers_per_node, "--workers-per-node", {1, 1024}, "Workers (GPUs) of a node");
    visit_kv_gib(v, kv_gib, "Page memory of each worker in GiB, all layers");
    visit_costs(v, costs);
    visit_shape(v, shape);
    visit_exchange(v, exchange);
    visit_pool_leaf_tokens(v, leaf_tokens);
    visit_topk(v, topk);
    v(other_ms, "--other-ms", {0, 1e6}, "Time of a step outside the tier: the rest of the model");
    sequencer.for_each_option(
        v,
        "Leaves of sequences with spread auto move between workers where that pays, at this rate "
        "at most in each pool; 0 for never");
    v(prefill.servers, "--prefill-servers", {0, 1 << 20}, "Servers of the prefill tier",
      {.shown_default = "0, prompts are ready when they arrive"});
    v(prefill.tokens_per_second, "--prefill-tokens-s", {1e-3, 1e12},
      "Prompt tokens a second of each prefill server");
    v(spread, "--spread", "LIST",
      "Policies to compare: each sequence on one worker (single), on as many as it has leaves "
      "(all), or as makes rounds short");
    v(rates, "--rate", "LIST", "Requests a second, each a run (default: the trace's own pace)");
    v(running, "--running", {0, 1 << 24},
      "Requests in flight at any time, instead of arrivals at a rate",
      {.shown_default = "0, a rate"});
    v(search, "--search",
      "Find the highest rate that meets the bounds without a refusal, by bisection");
    v(tpot_ms, "--tpot-ms", {1e-3, 1e6},
      "Bound on the 99th percentile of the time per output token");
    v(wait_ms, "--wait-ms", {0, 1e9},
      "Bound of the search on the 99th percentile of the wait for room in a pool");
    v(warmup_s, "--warmup-s", {0, 1e6}, "Simulated time before the measurement");
    v(measure_s, "--measure-s", {1e-3, 1e6}, "Simulated time that is measured");
    v(max_waiting, "--max-waiting", {1, 1 << 24},
      "Requests that may wait for room; more are refused");
    v(check_every, "--check-every", {0, std::int64_t{1} << 40},
      "Check one step in N of each pool against its full plan", {.shown_default = "500; 0, none"});
  }
};

/// `2.5,10`. Throws kInvalidArgument.
void read_value(const std::string& text, RateList& rates);
[[nodiscard]] std::string value_text(const RateList& rates);

}  // namespace tributary
