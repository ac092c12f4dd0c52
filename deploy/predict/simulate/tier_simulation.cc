#include "deploy/predict/simulate/tier_simulation.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/workload/trace_prefix.h"
#include "deploy/service/control/pool_rank.h"

namespace tributary {
namespace {

class TierSimulation {
 public:
  TierSimulation(const TierConfig& config, std::span<const TraceRequest> trace)
      : config_(config),
        trace_(trace),
        arrivals_(trace, config.in_flight > 0 ? 1 : config.rate),
        prefill_(config.prefill),
        end_s_(config.warmup_s + config.measure_s) {
    if (config.pools < 1 || !(config.warmup_s >= 0) || !(config.measure_s > 0)) {
      fail(ErrorCode::kInvalidArgument,
           "{} pools, {} s of warm-up, {} s of measurement; expected at least 1, 0, more than 0",
           config.pools, config.warmup_s, config.measure_s);
    }
    for (int i = 0; i < config.pools; ++i) {
      pools_.emplace_back(config.pool, static_cast<std::uint32_t>(i + 1));
    }
    holdable_.reserve(trace.size());
    for (const TraceRequest& request : trace) {
      holdable_.push_back(pools_.front().could_hold(admission(request)));
    }
    if (std::ranges::find(holdable_, true) == holdable_.end()) {
      fail(ErrorCode::kTooLarge,
           "an empty pool of {} workers with {} pages each could hold none of the {} requests with "
           "spread {}",
           config.pool.workers, config.pool.pages_per_worker, trace.size(),
           spread_policy_name(config.spread));
    }
  }

  TierResult run(TierEffort* effort) {
    const auto begin = std::chrono::steady_clock::now();
    if (config_.in_flight > 0) {
      for (std::int64_t i = 0; i < config_.in_flight; ++i) arrive(0);
    } else {
      schedule_arrival();
    }
    while (!events_.empty() && events_.top().time_s <= end_s_) {
      const Event event = events_.top();
      events_.pop();
      handle(event);
    }
    if (effort != nullptr) *effort = {seconds_since(begin), admit_seconds_};
    return result();
  }

 private:
  enum class Kind { kArrival, kPrefilled, kStepEnd };
  struct Event {
    double time_s = 0;
    std::uint64_t order = 0;  // of equal times, the first that was scheduled
    Kind kind = Kind::kArrival;
    std::int64_t index = 0;  // request, or pool

    friend bool operator>(const Event& a, const Event& b) {
      return std::tie(a.time_s, a.order) > std::tie(b.time_s, b.order);
    }
  };
  /// A request that has arrived and not ended.
  struct Request {
    std::size_t of_trace = 0;
    double arrived_s = 0;
    double prefill_wait_s = 0;
    double prefilled_s = 0;
    double first_token_s = 0;
  };
  struct PoolState {
    double begin_s = 0;  // of its step under way
    std::int64_t steps = 0;
    RoundTime round;
  };

  [[nodiscard]] AdmitRequest admission(const TraceRequest& request) const {
    return {.prompt_tokens = request.input_length,
            .max_new_tokens = request.output_length,
            .spread = config_.spread,
            .prefix = trace_prefix(request.hash_ids, request.input_length, config_.length_scale,
                                   config_.pool.cost.leaf_tokens)};
  }
  [[nodiscard]] bool measured(double time_s) const { return time_s > config_.warmup_s; }

  void schedule(double time_s, Kind kind, std::int64_t index) {
    events_.push({time_s, next_order_++, kind, index});
  }
  void schedule_arrival() { schedule(arrivals_.time_s(next_arrival_), Kind::kArrival, 0); }

  void handle(const Event& event) {
    switch (event.kind) {
      case Kind::kArrival:
        arrive(event.time_s);
        if (config_.in_flight == 0) schedule_arrival();
        break;
      case Kind::kPrefilled:
        prefilled(event.index, event.time_s);
        break;
      case Kind::kStepEnd:
        step_ended(static_cast<std::size_t>(event.index), event.time_s);
        break;
    }
  }

  void arrive(double now_s) {
    const std::size_t of_trace = arrivals_.request(next_arrival_++);
    ++counts_.arrived;
    if (measured(now_s)) ++measured_arrivals_;
    const auto prefill = prefill_.serve(now_s, trace_[of_trace].input_length);
    ++counts_.in_prefill;
    schedule(prefill.end_s, Kind::kPrefilled,
             new_request({.of_trace = of_trace,
                          .arrived_s = now_s,
                          .prefill_wait_s = prefill.begin_s - now_s,
                          .prefilled_s = prefill.end_s,
                          .first_token_s = 0}));
  }

  void prefilled(std::int64_t tag, double now_s) {
    Request& request = at(tag);
    --counts_.in_prefill;
    if (measured(now_s)) prefill_wait_s_.add(request.prefill_wait_s);
    if (!holdable_[request.of_trace]) {
      ++counts_.too_large;
      end_request(tag, now_s);
      return;
    }
    // With a fixed number in flight, requests wait for as long as it takes.
    if (config_.in_flight == 0 && std::cmp_greater_equal(waiting_.size(), config_.max_waiting)) {
      ++counts_.refused;
      end_request(tag, now_s);
      return;
    }
    waiting_.push_back(tag);
    // All pools have refused the requests before it, and nothing was freed since.
    if (waiting_.size() == 1) admit_waiting(now_s, std::nullopt);
  }

  void step_ended(std::size_t index, double now_s) {
    SimulatedPool& pool = pools_[index];
    PoolState& state = states_[index];
    for (const std::int64_t tag : pool.joined()) {
      Request& request = at(tag);
      request.first_token_s = now_s;
      if (measured(now_s)) ttft_s_.add(now_s - request.arrived_s);
    }
    if (measured(now_s)) measure_step(pool, state, now_s);
    pool.end_step();
    for (const std::int64_t tag : pool.finished()) finish(tag, now_s);
    if (!pool.finished().empty()) admit_waiting(now_s, index);
    if (!pool.in_step() && pool.sequences() > 0) begin_step(index, now_s);
  }

  void finish(std::int64_t tag, double now_s) {
    const Request& request = at(tag);
    ++counts_.finished;
    --counts_.running;
    if (measured(now_s)) {
      ++measured_ends_;
      const auto later_tokens = static_cast<double>(trace_[request.of_trace].output_length - 1);
      const double tpot_ms =
          later_tokens > 0 ? 1e3 * (now_s - request.first_token_s) / later_tokens : 0;
      if (later_tokens > 0) request_tpot_ms_.add(tpot_ms);
      if (tpot_ms <= config_.tpot_bound_ms) ++good_ends_;
    }
    end_request(tag, now_s);
  }

  void measure_step(const SimulatedPool& pool, const PoolState& state, double now_s) {
    const double seconds = now_s - state.begin_s;
    const auto sequences = static_cast<double>(pool.sequences());
    tpot_ms_.add(seconds * 1e3, sequences - static_cast<double>(pool.joined().size()));
    tokens_ += sequences;
    const auto add = [&](double& sum, double value) { sum += seconds * value; };
    step_seconds_ += seconds;
    add(sum_.running, sequences);
    add(sum_.occupancy,
        1 - static_cast<double>(pool.free_pages()) / static_cast<double>(pool.total_pages()));
    add(sum_.balance, pool.balance());
    for (std::size_t p = 0; p < kPhases; ++p) add(sum_.phase_us[p], state.round.phase_us[p]);
    add(sum_.other_us, state.round.other_us);
    add(sum_.all_gather_share, state.round.exchange == Exchange::kAllGather ? 1 : 0);
    sum_.bytes_per_token.node += state.round.bytes.node;
    sum_.bytes_per_token.network += state.round.bytes.network;
  }

  void begin_step(std::size_t index, double now_s) {
    PoolState& state = states_[index];
    SimulatedPool& pool = pools_[index];
    state.begin_s = now_s;
    state.round = pool.begin_step(now_s);
    if (config_.check_every > 0 && ++state.steps % config_.check_every == 0) check(pool.check());
    ++result_.steps;
    result_.copy_s += pool.copy_us() * 1e-6;
    const double step_s = (state.round.step_us + pool.copy_us()) * 1e-6 + config_.other_ms * 1e-3;
    schedule(now_s + step_s, Kind::kStepEnd, static_cast<std::int64_t>(index));
  }

  void check(const StepCheck& check) {
    ++result_.checks;
    result_.worst_check =
        std::max(result_.worst_check, std::abs(check.clock.step_us / check.plan.step_us - 1));
    result_.bytes_agree = result_.bytes_agree && check.clock.bytes == check.plan_bytes;
    result_.checked_tokens += check.tokens;
    result_.plan_bytes += check.plan_bytes.node + check.plan_bytes.network;
    result_.least_bytes += check.least_bytes;
    result_.mean_spread += check.mean_spread;
    result_.mean_roots += check.mean_roots;
    result_.busiest_home_roots += check.busiest_home_roots;
  }

  /// Admits from the front of the queue as long as there is room: requests do not overtake each
  /// other. `freed`: the only pool that has got room since the front was refused.
  void admit_waiting(double now_s, std::optional<std::size_t> freed) {
    const auto begin = std::chrono::steady_clock::now();
    while (!waiting_.empty()) {
      const std::int64_t tag = waiting_.front();
      const auto pool = freed ? ask(*freed, tag) : ask_all(tag);
      if (!pool) break;
      freed.reset();
      waiting_.pop_front();
      Request& request = at(tag);
      if (measured(now_s)) room_wait_s_.add(now_s - request.prefilled_s);
      ++counts_.running;
      result_.peak_running = std::max(result_.peak_running, counts_.running);
      touched_.push_back(*pool);
    }
    admit_seconds_ += seconds_since(begin);
    for (const std::size_t index : touched_) {
      if (!pools_[index].in_step()) begin_step(index, now_s);
    }
    touched_.clear();
  }

  [[nodiscard]] std::optional<std::size_t> ask(std::size_t index, std::int64_t tag) {
    if (!pools_[index].admit(admission(trace_[at(tag).of_trace]), tag)) return std::nullopt;
    return index;
  }

  /// The order in which the control plane asks the pools.
  [[nodiscard]] std::optional<std::size_t> ask_all(std::int64_t tag) {
    ranked_.clear();
    for (std::size_t i = 0; i < pools_.size(); ++i) {
      const SimulatedPool& pool = pools_[i];
      const double free =
          static_cast<double>(pool.free_pages()) / static_cast<double>(pool.total_pages());
      ranked_.emplace_back(PoolRank{1 - free, pool.sequences()}, i);
    }
    // A heap is enough: the first pool takes most requests.
    std::ranges::make_heap(ranked_, std::greater<>());
    while (!ranked_.empty()) {
      std::ranges::pop_heap(ranked_, std::greater<>());
      const std::size_t index = ranked_.back().second;
      ranked_.pop_back();
      if (ask(index, tag)) return index;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::int64_t new_request(const Request& request) {
    if (free_tags_.empty()) {
      requests_.push_back(request);
      return static_cast<std::int64_t>(requests_.size()) - 1;
    }
    const std::int64_t tag = free_tags_.back();
    free_tags_.pop_back();
    at(tag) = request;
    return tag;
  }
  void end_request(std::int64_t tag, double now_s) {
    free_tags_.push_back(tag);
    if (config_.in_flight > 0) schedule(now_s, Kind::kArrival, 0);
  }
  [[nodiscard]] Request& at(std::int64_t tag) { return requests_[static_cast<std::size_t>(tag)]; }

  TierResult result() {
    TierResult r = result_;
    r.requests = counts_;
    r.requests.waiting = static_cast<std::int64_t>(waiting_.size());
    r.arrived_per_s = static_cast<double>(measured_arrivals_) / config_.measure_s;
    r.finished_per_s = static_cast<double>(measured_ends_) / config_.measure_s;
    r.goodput_per_s = static_cast<double>(good_ends_) / config_.measure_s;
    r.tokens_per_s = tokens_ / config_.measure_s;
    r.ttft_s = ttft_s_.distribution();
    r.prefill_wait_s = prefill_wait_s_.distribution();
    r.room_wait_s = room_wait_s_.distribution();
    r.tpot_ms = tpot_ms_.distribution();
    r.request_tpot_ms = request_tpot_ms_.distribution();
    r.running = sum_.running / config_.measure_s;
    r.occupancy = sum_.occupancy / (config_.measure_s * config_.pools);
    if (step_seconds_ > 0) {
      r.balance = sum_.balance / step_seconds_;
      for (std::size_t p = 0; p < kPhases; ++p) r.phase_us[p] = sum_.phase_us[p] / step_seconds_;
      r.other_us = sum_.other_us / step_seconds_;
      r.all_gather_share = sum_.all_gather_share / step_seconds_;
      r.bytes_per_token = {sum_.bytes_per_token.node / tokens_,
                           sum_.bytes_per_token.network / tokens_};
    }
    if (r.checks > 0) {
      const auto checks = static_cast<double>(r.checks);
      r.mean_spread /= checks;
      r.mean_roots /= checks;
      r.busiest_home_roots /= checks;
    }
    for (const SimulatedPool& pool : pools_) {
      r.prompt_tokens += pool.prompt_tokens();
      r.present_tokens += pool.present_tokens();
      r.placements += pool.sequencer().ledger().placements();
      const LeafMoves::Totals& moves = pool.sequencer().moves().totals();
      r.moves += moves.completed;
      r.moved_bytes += static_cast<double>(moves.page_copies) * pool.page_copy_bytes();
    }
    return r;
  }

  const TierConfig& config_;
  std::span<const TraceRequest> trace_;
  Arrivals arrivals_;
  PrefillServers prefill_;
  double end_s_;
  std::deque<SimulatedPool> pools_;
  std::vector<PoolState> states_ = std::vector<PoolState>(static_cast<std::size_t>(config_.pools));
  std::vector<bool> holdable_;  // by request of the trace
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t next_order_ = 0;
  std::int64_t next_arrival_ = 0;
  std::vector<Request> requests_;  // by tag
  std::vector<std::int64_t> free_tags_;
  std::deque<std::int64_t> waiting_;
  std::vector<std::pair<PoolRank, std::size_t>> ranked_;
  std::vector<std::size_t> touched_;
  RequestCounts counts_;
  std::int64_t measured_arrivals_ = 0, measured_ends_ = 0, good_ends_ = 0;
  double tokens_ = 0;
  double step_seconds_ = 0;
  TierResult sum_;  // its means, times step_seconds_
  Samples ttft_s_, prefill_wait_s_, room_wait_s_, tpot_ms_, request_tpot_ms_;
  double admit_seconds_ = 0;
  TierResult result_;
};

}  // namespace

TierResult simulate_tier(const TierConfig& config, std::span<const TraceRequest> trace,
                         TierEffort* effort) {
  return TierSimulation(config, trace).run(effort);
}

}  // namespace tributary
