#include "deploy/app/bench/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/cost/cost_model.h"
#include "core/model/mla_shape.h"
#include "core/sequencer/uniform_batch.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/step_case.h"
#include "deploy/app/bench/timing.h"
#include "deploy/app/bench/unit_costs.h"
#include "deploy/app/bench/worker_peak.h"
#include "deploy/runtime/processor_name.h"
#include "deploy/runtime/run_workers.h"
#include "deploy/service/protocol/machine_file.h"

namespace tributary {
namespace {

using nlohmann::ordered_json;

/// The time of an undisturbed step.
struct MeasuredStep {
  double us = 0;
  PhaseTimes phase_us{};
  Exchange exchange = Exchange::kAuto;
};

/// On every rank; rank 0 gets the figures.
MeasuredStep measure_step(const bench::StepCaseConfig& config, double seconds,
                          const WorkerDevice& device, Communicator& communicator) {
  bench::StepCase steps(config, *device.backend, communicator, device.exchange.get());
  MeasuredStep measured;
  if (communicator.rank() != 0) {
    steps.follow();
    return measured;
  }
  std::vector<double> times;
  std::array<std::vector<double>, kPhases> phases;
  (void)steps.run();
  constexpr std::size_t kLeast = 20;
  const Deadline end =
      Deadline::after(std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1e3)));
  while (times.size() < kLeast || !end.expired()) {
    const auto begin = std::chrono::steady_clock::now();
    const RoundReport report = steps.run();
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
    for (std::size_t p = 0; p < kPhases; ++p) phases[p].push_back(report.phase_us[p]);
    measured.exchange = report.exchange;
  }
  steps.stop();
  measured.us = bench::undisturbed(std::move(times));
  for (std::size_t p = 0; p < kPhases; ++p) {
    measured.phase_us[p] = bench::undisturbed(std::move(phases[p]));
  }
  return measured;
}

/// The heads of the steps. Their rows must be those of all measurements.
int measured_heads(const std::string& name) {
  const MlaShape shape = find_mla_shape(name);
  const AttentionShape rows = bench::attention_shape(shape.heads);
  if (shape.kv_lora_rank != rows.kv_lora_rank || shape.qk_rope_head_dim != rows.qk_rope_head_dim) {
    fail(ErrorCode::kUnsupported, "bench measures rows of {} + {}; those of {} have {} + {}",
         rows.kv_lora_rank, rows.qk_rope_head_dim, shape.name, shape.kv_lora_rank,
         shape.qk_rope_head_dim);
  }
  return shape.heads;
}

class Bench {
 public:
  Bench(const BenchOptions& options, const WorkerDevice& device, int threads,
        Communicator& communicator)
      : options_(options),
        device_(device),
        backend_(*device.backend),
        communicator_(communicator),
        exchange_(device.exchange ? *device.exchange : communicator),
        heads_(measured_heads(options.shape)),
        threads_(threads) {
    const std::string host = processor_name();
    machine_ = {
        .description = fmt::format(
            "{}, {} rows", on_processor() ? host : fmt::format("{} on {}", backend_.name(), host),
            row_format_name(options.row_format)),
        .source = "measured",
        .backend = std::string(backend_.name()),
        .communicator = std::string(device.exchange_name(communicator)),
        .workers = communicator.size(),
        .threads = on_processor() ? threads : 0,
        .costs = {}};
  }

  BenchReport run() {
    peak();
    kernel();
    exchange();
    steps();
    json_["machine"] = to_json(machine_);
    return {.text = text_, .json = json_.dump(2)};
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format(format, std::forward<Args>(args)...) + '\n';
  }

  /// Whether threads of this process compute on the host's memory.
  [[nodiscard]] bool on_processor() const { return backend_.host_memory(); }

  void peak() {
    (void)bench::maximum(communicator_, 0);  // all at once
    peak_ = bench::measure_worker_peak(backend_, threads_);
    const auto plural = [](int count) { return count == 1 ? "" : "s"; };
    const std::string workers = fmt::format("{} worker{} ({})", machine_.workers,
                                            plural(machine_.workers), machine_.communicator);
    if (on_processor()) {
      line("{}; {} of {} thread{}; kernels {}", machine_.description, workers, threads_,
           plural(threads_), machine_.backend);
    } else {
      line("{}; {}", machine_.description, workers);  // the description begins with the backend
    }
    line("a worker at most: {:.0f} GFLOP/s of {}, {:.1f} GB/s {}", peak_.gflops, peak_.arithmetic,
         peak_.gb_s, peak_.copies ? "read and written by copies" : "read from memory");
    json_["peak"] = {{"gflops", peak_.gflops},
                     {"instructions", peak_.arithmetic},
                     {peak_.copies ? "copy_gb_s" : "read_gb_s", peak_.gb_s}};
  }

  void kernel() {
    const double seconds = options_.seconds;
    const auto lines = bench::measure_attend(backend_, communicator_, options_.row_format, seconds,
                                             machine_.costs);
    bench::measure_merge(backend_, communicator_, seconds, machine_.costs);
    bench::measure_records(backend_, communicator_, seconds, machine_.costs);
    bench::measure_projection(backend_, communicator_, seconds, machine_.costs);
    line("\n{:<9}{:>7}{:>7}{:>9}{:>11}{:>10}{:>9}{:>9}{:>9}", "attend", "heads", "batch", "context",
         "us", "GFLOP/s", "of peak", "GB/s", "of peak");
    json_["attend"] = ordered_json::array();
    for (const bench::AttendLine& l : lines) {
      line("{:<9}{:>7}{:>7}{:>9}{:>11.1f}{:>10.1f}{:>8.0f}%{:>9.2f}{:>8.0f}%", "", l.heads, l.batch,
           l.context, l.us, l.gflops, 100 * l.gflops / peak_.gflops, l.gb_s,
           100 * l.gb_s / peak_.gb_s);
      json_["attend"].push_back({{"heads", l.heads},
                                 {"batch", l.batch},
                                 {"context", l.context},
                                 {"us", l.us},
                                 {"gflops", l.gflops},
                                 {"gb_s", l.gb_s}});
    }
  }

  void exchange() {
    bench::measure_lateness(backend_, communicator_, exchange_, machine_.costs);
    const auto lines = bench::measure_exchange(backend_, communicator_, exchange_, options_.seconds,
                                               machine_.costs);
    json_["exchange"] = ordered_json::array();
    if (lines.empty()) {
      line("\nexchange: nothing to measure between one worker and itself");
      return;
    }
    line("\n{:<12}{:>12}{:>11}{:>9}{:>15}", "exchange", "block bytes", "us", "GB/s",
         peak_.copies ? "of copies" : "of memory read");
    for (const bench::ExchangeLine& l : lines) {
      line("{:<12}{:>12}{:>11.1f}{:>9.3f}{:>14.0f}%", l.collective, l.bytes, l.us, l.gb_s,
           100 * l.gb_s / peak_.gb_s);
      json_["exchange"].push_back(
          {{"collective", l.collective}, {"bytes", l.bytes}, {"us", l.us}, {"gb_s", l.gb_s}});
    }
  }

  [[nodiscard]] MeasuredStep measure(int layers, int batch, std::int64_t context) {
    const AttentionShape attention = bench::attention_shape(heads_, options_.row_format);
    const int apart = bench::layers_from_memory(batch * context, attention.row());
    return measure_step({.attention = attention,
                         .layers = layers,
                         .pool_layers = std::max(layers, apart),
                         .batch = batch,
                         .context = context,
                         .leaf_tokens = options_.leaf_tokens,
                         .costs = placement_costs_},
                        options_.seconds, device_, communicator_);
  }
  [[nodiscard]] StepPrediction predict(int layers, int batch, std::int64_t context,
                                       Exchange exchange) const {
    CostModelConfig model{.costs = placement_costs_,
                          .attention = bench::attention_shape(heads_, options_.row_format),
                          .projection = {},
                          .layers = layers,
                          .leaf_tokens = options_.leaf_tokens,
                          .workers_per_node = machine_.workers};
    const UniformBatch step(
        {.workers = machine_.workers, .batch = batch, .context = context, .model = model});
    model.costs = machine_.costs;
    return predict_step(model, step.routing(), machine_.workers, exchange);
  }

  /// Rank 0 places steps by the measurements so far; the result is the same everywhere.
  void agree_on_placement() {
    placement_costs_ = machine_.costs;
    communicator_
        .broadcast(std::as_writable_bytes(std::span(&placement_costs_, 1)), 0,
                   Deadline::after(std::chrono::minutes(1)))
        .throw_if_error();
  }

  /// Measures by how much the smallest steps exceed their parts: the fixed cost of a round and of a
  /// step.
  void calibrate() {
    agree_on_placement();
    constexpr int kLayers = 9;
    constexpr int kBatch = 16;
    const MeasuredStep one = measure(1, 1, kPageTokens);
    const MeasuredStep many = measure(kLayers, 1, kPageTokens);
    const MeasuredStep wide = measure(1, kBatch, kPageTokens);
    if (communicator_.rank() != 0) return;
    MachineCosts& costs = machine_.costs;
    costs.plan_item_us = wide.phase_us[static_cast<std::size_t>(Phase::kPlan)] / kBatch;
    const double parts_one = predict(1, 1, kPageTokens, one.exchange).step_us;
    const double parts_many = predict(kLayers, 1, kPageTokens, many.exchange).step_us;
    costs.round_us = std::max(0.0, (many.us - one.us - (parts_many - parts_one)) / (kLayers - 1));
    costs.step_us = std::max(0.0, one.us - parts_one - costs.round_us);
  }

  void steps() {
    calibrate();
    agree_on_placement();
    line("\n{:<6}{:>7}{:>9}{:>12}{:>13}{:>7}{:>10}{:>10}{:>10}{:>10}", "step", "batch", "context",
         "us", "predicted us", "", "queries", "attend", "partials", "combine");
    json_["steps"] = ordered_json::array();
    for (const BenchStep& step : options_.steps) {
      const MeasuredStep measured = measure(1, step.batch, step.context);
      if (communicator_.rank() != 0) continue;
      const StepPrediction predicted = predict(1, step.batch, step.context, measured.exchange);
      const auto phase = [&](Phase p) { return measured.phase_us[static_cast<std::size_t>(p)]; };
      line("{:<6}{:>7}{:>9}{:>12.1f}{:>13.1f}{:>+6.0f}%{:>10.1f}{:>10.1f}{:>10.1f}{:>10.1f}", "",
           step.batch, step.context, measured.us, predicted.step_us,
           100 * (predicted.step_us / measured.us - 1), phase(Phase::kQueryExchange),
           phase(Phase::kAttend), phase(Phase::kPartialExchange), phase(Phase::kCombine));
      ordered_json phases;
      for (std::size_t p = 0; p < kPhases; ++p) {
        phases[std::string(phase_name(static_cast<Phase>(p)))] = measured.phase_us[p];
      }
      json_["steps"].push_back({{"heads", heads_},
                                {"batch", step.batch},
                                {"context", step.context},
                                {"exchange", exchange_name(measured.exchange)},
                                {"us", measured.us},
                                {"predicted_us", predicted.step_us},
                                {"phase_us", std::move(phases)}});
    }
  }

  const BenchOptions& options_;
  const WorkerDevice& device_;
  Backend& backend_;
  Communicator& communicator_;  // for what ranks tell each other
  Communicator& exchange_;      // for queries and partial states
  int heads_;
  int threads_;
  Machine machine_;
  MachineCosts placement_costs_;
  bench::WorkerPeak peak_;
  std::string text_;
  ordered_json json_;
};

}  // namespace

BenchReport run_bench(const BenchOptions& options, Communicator& communicator) {
  const int threads = options.threads > 0 ? options.threads : threads_per_worker(communicator);
  const WorkerDevice device = open_device(options.backend, threads, communicator);
  return run_bench(options, device, threads, communicator);
}

BenchReport run_bench(const BenchOptions& options, const WorkerDevice& device, int threads,
                      Communicator& communicator) {
  BenchReport report = Bench(options, device, threads, communicator).run();
  return communicator.rank() == 0 ? report : BenchReport{};
}

}  // namespace tributary
