#include "deploy/predict/simulate/simulate.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/attention_shape.h"
#include "core/model/mla_shape.h"
#include "core/model/pool_shape.h"
#include "deploy/predict/simulate/rate_plot.h"
#include "deploy/service/protocol/machine_file.h"

namespace tributary {
namespace {

/// A search ends when the two rates differ by this.
constexpr double kRatePrecision = 1.02;

std::vector<TraceRequest> read_requests(const SimulateOptions& options) {
  constexpr std::size_t kBuiltInRequests = 2000;
  const auto limit = static_cast<std::size_t>(options.requests);
  auto requests = options.trace
                      ? read_trace(*options.trace, limit)
                      : built_in_workload(limit == 0 ? kBuiltInRequests : limit, options.seed);
  if (requests.empty()) fail(ErrorCode::kInvalidArgument, "the trace holds no request");
  constexpr double kMaxLength = 1 << 30;
  const auto scaled = [&](std::int64_t length) {
    return static_cast<std::int64_t>(std::clamp(
        std::round(static_cast<double>(length) * options.length_scale), 1.0, kMaxLength));
  };
  for (TraceRequest& request : requests) {
    request.input_length = scaled(request.input_length);
    request.output_length = scaled(request.output_length);
  }
  return requests;
}

std::int32_t pages_of(double gib, const CostModelConfig& cost) {
  const double page_bytes =
      static_cast<double>(cost.attention.row_bytes()) * kPageTokens * cost.layers;
  const double pages = std::floor(gib * 0x1p30 / page_bytes);
  if (!(pages >= 1 && pages <= std::numeric_limits<std::int32_t>::max())) {
    fail(ErrorCode::kInvalidArgument, "--kv-gib is {}: {:.0f} pages, expected 1 .. 2^31 - 1", gib,
         pages);
  }
  return static_cast<std::int32_t>(pages);
}

double peak_memory_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

/// The worst of the bounds that a run misses, and the main part of its time.
std::string what_binds(const TierResult& r, double tpot_ms, double wait_ms) {
  if (r.tpot_ms.p99 > tpot_ms) {
    double step_us = r.other_us;
    for (const double us : r.phase_us) step_us += us;
    const auto most = std::ranges::max_element(r.phase_us);
    const auto phase = static_cast<Phase>(most - r.phase_us.begin());
    return fmt::format("time per token: {} is {:.0f}% of a step, busiest / mean worker {:.2f}",
                       phase_name(phase), 100 * *most / step_us, r.balance);
  }
  if (r.requests.refused > 0 || r.room_wait_s.p99 * 1e3 > wait_ms) {
    return fmt::format("memory: requests wait for room while {:.0f}% of the pages are taken",
                       100 * r.occupancy);
  }
  return "nothing";
}

class Experiment {
 public:
  Experiment(const SimulateOptions& options, SimulateReport& report)
      : options_(options), report_(report), trace_(read_requests(options)) {
    const MlaShape shape = find_mla_shape(options.shape);
    const Machine machine = find_machine(options.costs);
    base_.pools = options.pools;
    base_.length_scale = options.length_scale;
    base_.pool.workers = options.workers;
    base_.pool.exchange = options.exchange;
    const AttentionShape attention =
        attention_shape(shape, RowFormat::kBF16, DType::kBF16, options.topk);
    base_.pool.cost = {.costs = machine.costs,
                       .attention = attention,
                       .projection = {},
                       .layers = shape.layers,
                       .leaf_tokens = options.leaf_tokens > 0 ? options.leaf_tokens
                                                              : default_leaf_tokens(attention.topk),
                       .workers_per_node = options.workers_per_node};
    base_.pool.sequencer = options.sequencer;
    base_.pool.pages_per_worker = pages_of(options.kv_gib, base_.pool.cost);
    base_.prefill = options.prefill;
    base_.in_flight = options.running;
    base_.max_waiting = options.max_waiting;
    base_.other_ms = options.other_ms;
    base_.warmup_s = options.warmup_s;
    base_.measure_s = options.measure_s;
    base_.tpot_bound_ms = options.tpot_ms;
    base_.check_every = options.check_every;

    report.machine = fmt::format("{} ({})", machine.description, machine.source);
    report.shape = shape.name;
    report.topk = attention.topk;
    report.pools = options.pools;
    report.workers = options.workers;
    report.workers_per_node = options.workers_per_node;
    report.pages_per_worker = base_.pool.pages_per_worker;
    report.tpot_ms = options.tpot_ms;
    report.wait_ms = options.wait_ms;
    report.trace_requests = static_cast<std::int64_t>(trace_.size());
    report.trace_rate = Arrivals::own_rate(trace_);
  }

  void run() {
    for (const SpreadPolicy spread : options_.spread) {
      results_.clear();
      if (options_.running > 0) {
        (void)at(spread, 0);
      } else if (options_.rates.values.empty() && !options_.search) {
        (void)at(spread, own_rate());
      }
      for (const double rate : options_.rates.values) (void)at(spread, rate);
      if (options_.search) search(spread);
      for (const auto& [rate, result] : results_) {
        report_.points.push_back({.spread = spread, .rate = rate, .result = result});
      }
    }
  }

 private:
  [[nodiscard]] double own_rate() const {
    return report_.trace_rate > 0 ? report_.trace_rate : static_cast<double>(trace_.size());
  }

  const TierResult& at(SpreadPolicy spread, double rate) {
    if (const auto known = results_.find(rate); known != results_.end()) return known->second;
    TierConfig config = base_;
    config.spread = spread;
    config.rate = rate;
    TierEffort effort;
    TierResult result = simulate_tier(config, trace_, &effort);
    report_.effort.seconds += effort.seconds;
    report_.effort.admit_seconds += effort.admit_seconds;
    return results_.emplace(rate, std::move(result)).first->second;
  }

  void search(SpreadPolicy spread) {
    const auto meets = [&](double rate) {
      return meets_bounds(at(spread, rate), options_.tpot_ms, options_.wait_ms);
    };
    const RateBracket bracket =
        bracket_rate(static_cast<double>(options_.pools) * options_.workers, kRatePrecision, meets);
    report_.searches.push_back(
        {.spread = spread,
         .rate = bracket,
         .binds = bracket.fails == 0
                      ? "nothing"
                      : what_binds(at(spread, bracket.fails), options_.tpot_ms, options_.wait_ms)});
  }

  const SimulateOptions& options_;
  SimulateReport& report_;
  std::vector<TraceRequest> trace_;
  TierConfig base_;
  std::map<double, TierResult> results_;  // of the policy at hand, by rate
};

}  // namespace

bool meets_bounds(const TierResult& result, double tpot_ms, double wait_ms) {
  return result.requests.refused == 0 && result.tpot_ms.p99 <= tpot_ms &&
         result.room_wait_s.p99 * 1e3 <= wait_ms;
}

SimulateReport simulate(const SimulateOptions& options) {
  if (options.running > 0 && (options.search || !options.rates.values.empty())) {
    fail(ErrorCode::kInvalidArgument,
         "--running keeps {} requests in flight: there is no rate to give or to search for",
         options.running);
  }
  // A pool of 8 workers takes 0.8 MiB: 13 GiB in all.
  constexpr std::int64_t kMaxWorkersInAll = 131'072;
  if (std::int64_t{options.pools} * options.workers > kMaxWorkersInAll) {
    fail(ErrorCode::kInvalidArgument, "--pools {} of {} workers each: {} are the most in all",
         options.pools, options.workers, kMaxWorkersInAll);
  }
  SimulateReport report;
  Experiment(options, report).run();
  report.peak_memory_bytes = peak_memory_bytes();
  return report;
}

std::string to_svg(const SimulateReport& report) {
  std::vector<RateSeries> series;
  for (const SimulatedPoint& point : report.points) {
    const auto name = std::string(spread_policy_name(point.spread));
    if (series.empty() || series.back().name != name) series.push_back({name, {}});
    const double rate = point.rate > 0 ? point.rate : point.result.arrived_per_s;
    series.back().points.push_back({rate, point.result.tpot_ms.p99});
  }
  return rate_plot_svg(
      series, report.tpot_ms,
      fmt::format("{} x {} workers, {}", report.pools, report.workers, report.shape));
}

}  // namespace tributary
