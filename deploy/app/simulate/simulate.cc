#include "deploy/app/simulate/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/pool_shape.h"
#include "core/sequencer/sequencer.h"

namespace tributary {
namespace {

using Clock = Deadline::Clock;

class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] Distribution distribution() {
    if (values_.empty()) return {};
    std::sort(values_.begin(), values_.end());
    double sum = 0;
    for (const double value : values_) sum += value;
    const auto p99 = static_cast<std::size_t>(0.99 * static_cast<double>(values_.size() - 1));
    return {sum / static_cast<double>(values_.size()), values_[p99], values_.back()};
  }

 private:
  std::vector<double> values_;
};

double max_over_mean(std::span<const WorkerLoad> loads, std::int64_t WorkerLoad::*field) {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const WorkerLoad& load : loads) {
    most = std::max(most, load.*field);
    sum += load.*field;
  }
  return sum == 0 ? 1
                  : static_cast<double>(most) * static_cast<double>(loads.size()) /
                        static_cast<double>(sum);
}

class Simulation {
 public:
  Simulation(const SimulateOptions& options, const AttentionShape& attention, std::int32_t pages)
      : options_(options),
        sequencer_({.placement = {.workers = options.workers,
                                  .leaf_tokens = options.leaf_tokens,
                                  .costs = {},
                                  .extent_share = PlacementConfig{}.extent_share},
                    .pages_per_worker = pages,
                    .incarnation = 1}) {
    costs_.token_record_bytes = static_cast<std::int64_t>(attention.token_record_bytes());
    costs_.state_record_bytes = static_cast<std::int64_t>(attention.state_shape().record_bytes());
  }

  SimulateReport run(const std::vector<TraceRequest>& requests) {
    for (std::size_t i = 0; i < requests.size(); ++i)
      sequencer_.check(admission(requests[i]), tag_of(i));
    while (next_ < requests.size() || !running_.empty()) {
      admit(requests);
      step();
    }
    report_.requests = static_cast<std::int64_t>(requests.size());
    report_.balance = balance_.distribution();
    report_.home_balance = home_balance_.distribution();
    report_.placements = sequencer_.placements();
    report_.placements_per_second = static_cast<double>(admit_placements_) / admit_seconds_;
    report_.plan_us =
        1e6 * plan_seconds_ / static_cast<double>(std::max<std::int64_t>(1, report_.steps));
    const auto full = static_cast<double>(std::max<std::int64_t>(1, report_.full_steps));
    for (double* sum : {&report_.mean_spread, &report_.mean_roots, &report_.mean_extents,
                        &report_.busiest_home_roots, &report_.busiest_home_bytes,
                        &report_.exchange_bytes, &report_.all_gather_share}) {
      *sum /= full;
    }
    return report_;
  }

 private:
  struct Running {
    SequenceId id;
    std::int64_t remaining;
  };

  [[nodiscard]] static std::int64_t tag_of(std::size_t index) {
    return static_cast<std::int64_t>(index);
  }
  [[nodiscard]] AdmitRequest admission(const TraceRequest& request) const {
    return {.prompt_tokens = request.input_length,
            .max_new_tokens = request.output_length,
            .spread = options_.spread};
  }

  void admit(const std::vector<TraceRequest>& requests) {
    while (next_ < requests.size() &&
           running_.size() < static_cast<std::size_t>(options_.running)) {
      const TraceRequest& request = requests[next_];
      const std::uint64_t before = sequencer_.placements();
      const auto begin = Clock::now();
      const auto id = sequencer_.admit(admission(request), {.tag = tag_of(next_)});
      admit_seconds_ += seconds_since(begin);
      admit_placements_ += sequencer_.placements() - before;
      if (!id) return;
      running_.push_back({*id, request.output_length});
      ++next_;
    }
  }

  void step() {
    items_.clear();
    for (const Running& sequence : running_) items_.push_back({sequence.id, 1});
    sequencer_.begin_step(items_);
    const Order order = sequencer_.take_order();
    plan(order.step);
    if (running_.size() == static_cast<std::size_t>(options_.running)) measure();
    ++report_.steps;
    sequencer_.commit_step(std::vector<std::int32_t>(running_.size(), 1));
    std::size_t kept = 0;
    for (Running& sequence : running_) {
      if (--sequence.remaining > 0) {
        running_[kept++] = sequence;
      } else {
        sequencer_.free(sequence.id);
      }
    }
    running_.resize(kept);
  }

  /// What one worker does before a step; the workers take turns.
  void plan(std::span<const StepItem> step) {
    const auto begin = Clock::now();
    build_routing(sequencer_.table(), step, options_.workers, routing_);
    exchange_ = options_.exchange == Exchange::kAuto
                    ? choose_exchange(routing_, options_.workers, costs_)
                    : options_.exchange;
    PlanBuilder builder(options_.workers, static_cast<int>(report_.steps % options_.workers),
                        options_.leaf_tokens);
    builder.build(routing_, exchange_, plan_);
    plan_seconds_ += seconds_since(begin);
  }

  void measure() {
    const auto loads = sequencer_.loads();
    ++report_.full_steps;
    balance_.add(max_over_mean(loads, &WorkerLoad::tokens));
    home_balance_.add(max_over_mean(loads, &WorkerLoad::homes));
    const auto sequences = static_cast<double>(routing_.items.size());
    report_.mean_spread += static_cast<double>(routing_.spread.size()) / sequences;
    report_.mean_roots += static_cast<double>(routing_.roots.size()) / sequences;
    report_.mean_extents += static_cast<double>(extents()) / sequences;

    std::vector<std::int64_t> inbound(loads.size(), 0);
    for (const ItemRoot& root : routing_.roots) {
      const auto& item = routing_.items[static_cast<std::size_t>(root.item)];
      if (root.worker != item.home) inbound[static_cast<std::size_t>(item.home)] += item.tokens;
    }
    const auto busiest = static_cast<double>(*std::max_element(inbound.begin(), inbound.end()));
    report_.busiest_home_roots += busiest;
    report_.busiest_home_bytes += busiest * static_cast<double>(costs_.state_record_bytes);
    const ExchangeVolume volume = exchange_volume(routing_, options_.workers, exchange_);
    report_.exchange_bytes += static_cast<double>(volume.token_records * costs_.token_record_bytes +
                                                  volume.state_records * costs_.state_record_bytes);
    report_.all_gather_share += exchange_ == Exchange::kAllGather ? 1 : 0;
  }

  [[nodiscard]] std::int64_t extents() const {
    std::int64_t count = 0;
    for (std::size_t r = 0; r < routing_.roots.size(); ++r) {
      const ItemRoot& root = routing_.roots[r];
      const bool continues = r > 0 && routing_.roots[r - 1].item == root.item &&
                             routing_.roots[r - 1].worker == root.worker;
      if (!continues) ++count;
    }
    return count;
  }

  const SimulateOptions& options_;
  Sequencer sequencer_;
  ExchangeCosts costs_;
  Exchange exchange_ = Exchange::kAllToAll;
  std::vector<Running> running_;
  std::vector<Sequencer::StepRequest> items_;
  std::size_t next_ = 0;
  Routing routing_;
  RankPlan plan_;
  Samples balance_;
  Samples home_balance_;
  std::uint64_t admit_placements_ = 0;
  double admit_seconds_ = 0;
  double plan_seconds_ = 0;
  SimulateReport report_;
};

}  // namespace

SimulateReport simulate(const SimulateOptions& options) {
  const AttentionShape shape =
      attention_shape(find_mla_shape(options.shape), RowFormat::kBF16, DType::kBF16);
  const auto limit = static_cast<std::size_t>(options.requests);
  const auto requests = options.trace ? read_trace(*options.trace, limit)
                                      : built_in_workload(limit == 0 ? 2000 : limit, options.seed);
  if (requests.empty()) fail(ErrorCode::kInvalidArgument, "the trace holds no request");
  const double pages =
      options.kv_gib * 0x1p30 / (static_cast<double>(shape.row_bytes()) * kPageTokens);
  if (!(pages >= 1 && pages <= 0x7fffffff)) {
    fail(ErrorCode::kInvalidArgument, "--kv-gib is {}: {:.0f} pages, expected 1 .. 2^31 - 1",
         options.kv_gib, pages);
  }
  return Simulation(options, shape, static_cast<std::int32_t>(pages)).run(requests);
}

std::string to_text(const SimulateReport& r) {
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<22} {}\n", name, value);
  };
  line("steps", fmt::format("{} ({} with all slots taken: those are measured), {} requests",
                            r.steps, r.full_steps, r.requests));
  line("balance",
       fmt::format("mean {:.3f}, p99 {:.3f}, worst {:.3f} (max / mean tokens per worker)",
                   r.balance.mean, r.balance.p99, r.balance.max));
  line("spread", fmt::format("{:.2f} workers, {:.2f} extents, {:.2f} subtree roots a sequence",
                             r.mean_spread, r.mean_extents, r.mean_roots));
  line("homes", fmt::format("mean {:.3f}, p99 {:.3f} (max / mean homed sequences)",
                            r.home_balance.mean, r.home_balance.p99));
  line("busiest home", fmt::format("{:.1f} roots, {:.2f} MiB inbound a layer", r.busiest_home_roots,
                                   r.busiest_home_bytes / 0x1p20));
  line("exchange", fmt::format("{:.2f} MiB a layer, all-gather in {:.1f}% of steps",
                               r.exchange_bytes / 0x1p20, 100 * r.all_gather_share));
  line("placements", fmt::format("{} ({:.0f} a second)", r.placements, r.placements_per_second));
  line("plan", fmt::format("{:.0f} us a step and worker", r.plan_us));
  return text;
}

std::string to_json(const SimulateReport& r) {
  const auto spread = [](const Distribution& d) {
    return nlohmann::ordered_json{{"mean", d.mean}, {"p99", d.p99}, {"max", d.max}};
  };
  const nlohmann::ordered_json json{
      {"requests", r.requests},
      {"steps", r.steps},
      {"full_steps", r.full_steps},
      {"balance", spread(r.balance)},
      {"home_balance", spread(r.home_balance)},
      {"mean_spread", r.mean_spread},
      {"mean_extents", r.mean_extents},
      {"mean_roots", r.mean_roots},
      {"busiest_home_roots", r.busiest_home_roots},
      {"busiest_home_bytes", r.busiest_home_bytes},
      {"exchange_bytes", r.exchange_bytes},
      {"all_gather_share", r.all_gather_share},
      {"placements", r.placements},
      {"placements_per_second", r.placements_per_second},
      {"plan_us", r.plan_us},
  };
  return json.dump(2);
}

}  // namespace tributary
