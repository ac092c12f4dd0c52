#include "deploy/app/replay/replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/pool_shape.h"
#include "core/pool/gather_all.h"
#include "core/pool/pool_worker.h"
#include "core/sequencer/sequencer.h"
#include "deploy/app/replay/progress.h"
#include "deploy/app/replay/synthetic_client.h"
#include "deploy/runtime/device.h"
#include "deploy/runtime/host_name.h"
#include "deploy/runtime/page_budget.h"
#include "deploy/runtime/run_workers.h"
#include "deploy/service/worker/pool_costs.h"

namespace tributary {
namespace {

using Clock = Deadline::Clock;

AttentionShape attention_shape(const ReplayOptions& options) {
  AttentionShape shape =
      attention_shape(find_mla_shape(options.shape), options.row_format, options.query_dtype);
  if (options.heads > 0) shape.heads = options.heads;
  return shape;
}

/// How long a follower waits for the next order; the leader may be in a round for half of it.
std::chrono::milliseconds order_timeout(const ReplayOptions& options) {
  return 2 * std::chrono::milliseconds(options.round_timeout_ms);
}

/// A rank's contribution to the report at the end.
struct RankTotals {
  std::uint64_t digest = 0;
  std::int64_t canaries = 0;
  double canary_error = 0;
};

/// Rank 0's loop: admits by arrival, steps all running sequences, frees what is done.
class Leader {
 public:
  Leader(const ReplayOptions& options, const std::vector<TraceRequest>& requests, int workers,
         std::int32_t pages, const CostModelConfig& model, Worker& worker, ReplayReport& report)
      : options_(options),
        requests_(requests),
        worker_(worker),
        report_(report),
        sequencer_({.placement = {.workers = workers, .model = model},
                    .pages_per_worker = pages,
                    .incarnation = 1}) {
    report_.pages_total = std::int64_t{pages} * workers;
  }

  void run(std::FILE* terminal) {
    std::int64_t total_tokens = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      sequencer_.check(admission(i), tag_of(i));  // before the first step, not hours into the run
      total_tokens += requests_[i].output_length;
    }
    Progress progress(terminal, total_tokens);
    const auto begin = Clock::now();
    while (next_ < requests_.size() || !running_.empty()) {
      admit(seconds_since(begin));
      if (running_.empty()) {
        heartbeat();
        std::this_thread::sleep_for(  // until the next arrival
            std::min<Clock::duration>(std::chrono::milliseconds(20), heartbeat_interval()));
        continue;
      }
      step();
      progress.update(report_.tokens, running_.size());
    }
    Order last = sequencer_.take_order();
    last.stop = true;
    worker_.lead(last).status.throw_if_error();
    report_.seconds = seconds_since(begin);
    finish();
  }

 private:
  struct Running {
    SequenceId id;
    std::int64_t remaining;
  };

  [[nodiscard]] bool arrived(const TraceRequest& request, double now_s) const {
    return options_.speed <= 0 ||
           (request.timestamp_ms - requests_.front().timestamp_ms) / 1000 / options_.speed <= now_s;
  }

  [[nodiscard]] static std::int64_t tag_of(std::size_t index) {
    return static_cast<std::int64_t>(index);
  }
  [[nodiscard]] AdmitRequest admission(std::size_t index) const {
    return {.prompt_tokens = requests_[index].input_length,
            .max_new_tokens = requests_[index].output_length,
            .spread = options_.spread};
  }

  void admit(double now_s) {
    while (next_ < requests_.size() &&
           running_.size() < static_cast<std::size_t>(options_.max_batch)) {
      const TraceRequest& request = requests_[next_];
      if (!arrived(request, now_s)) return;
      const auto id = sequencer_.admit(admission(next_), {.tag = tag_of(next_)});
      if (!id) return;
      running_.push_back({*id, request.output_length});
      report_.prompt_tokens += request.input_length;
      ++next_;
    }
  }

  /// A quarter of the time that the followers wait for an order.
  [[nodiscard]] Clock::duration heartbeat_interval() const {
    return std::min<Clock::duration>(std::chrono::seconds(1), order_timeout(options_) / 4);
  }

  /// Keeps the followers' waits for an order from ending while nothing arrives.
  void heartbeat() {
    if (Clock::now() < next_heartbeat_) return;
    next_heartbeat_ = Clock::now() + heartbeat_interval();
    worker_.lead(sequencer_.take_order()).status.throw_if_error();
  }

  void step() {
    items_.clear();
    accepted_.clear();
    for (const Running& sequence : running_) {
      const auto tokens = static_cast<std::int32_t>(
          std::min<std::int64_t>(options_.tokens_per_step, sequence.remaining));
      items_.push_back({sequence.id, tokens});
      accepted_.push_back(tokens);
    }
    sequencer_.begin_step(items_);
    const RoundReport round = worker_.lead(sequencer_.take_order());
    round.status.throw_if_error();
    record(round);
    sequencer_.commit_step(accepted_);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].remaining -= accepted_[i];
      report_.tokens += accepted_[i];
      if (running_[i].remaining > 0) {
        running_[kept++] = running_[i];
      } else {
        sequencer_.free(running_[i].id);
      }
    }
    running_.resize(kept);
  }

  void record(const RoundReport& round) {
    ++report_.steps;
    report_.step_seconds += round.step_us * 1e-6;
    step_us_.push_back(round.step_us);
    for (std::size_t p = 0; p < kPhases; ++p) {
      if (p == static_cast<std::size_t>(Phase::kFill) && round.phase_us[p] == 0) continue;
      phase_us_[p].push_back(round.phase_us[p]);
    }
    const auto [least, most] =
        std::minmax_element(round.worker_rows.begin(), round.worker_rows.end());
    std::int64_t rows = 0;
    for (const std::int64_t worker_rows : round.worker_rows) rows += worker_rows;
    balance_sum_ += static_cast<double>(*most) * static_cast<double>(round.worker_rows.size()) /
                    static_cast<double>(rows);
    spread_sum_ += round.mean_spread;
    report_.exchange_bytes += round.exchanged_bytes;
    report_.planned_exchange_bytes += round.planned_bytes;
    report_.state_bytes += round.state_bytes;
    report_.peak_pages = std::max(report_.peak_pages, pages_in_use());
  }

  [[nodiscard]] std::int64_t pages_in_use() const {
    std::int64_t used = 0;
    for (const PagePool& pool : sequencer_.pools()) used += pool.used();
    return used;
  }

  void finish() {
    report_.requests = static_cast<std::int64_t>(requests_.size());
    report_.step_us = percentiles(step_us_);
    for (std::size_t p = 0; p < kPhases; ++p) report_.phase_us[p] = percentiles(phase_us_[p]);
    if (report_.steps > 0) {
      report_.balance = balance_sum_ / static_cast<double>(report_.steps);
      report_.mean_spread = spread_sum_ / static_cast<double>(report_.steps);
    }
    report_.pages_in_use_at_end = pages_in_use();
  }

  const ReplayOptions& options_;
  const std::vector<TraceRequest>& requests_;
  Worker& worker_;
  ReplayReport& report_;
  Sequencer sequencer_;
  std::vector<Running> running_;
  std::size_t next_ = 0;
  Clock::time_point next_heartbeat_{};
  std::vector<Sequencer::StepRequest> items_;
  std::vector<std::int32_t> accepted_;
  std::vector<double> step_us_;
  std::array<std::vector<double>, kPhases> phase_us_;
  double balance_sum_ = 0;
  double spread_sum_ = 0;
};

void add_totals(const SyntheticClient& client, Communicator& communicator, ReplayReport& report) {
  const auto canary = client.check_canaries();
  const RankTotals mine{client.digest().value(), canary.checked, canary.max_relative_error};
  std::vector<RankTotals> all;
  // Canaries of long sequences take a while, and not the same on every rank.
  gather_all(communicator, mine, all, Deadline::after(std::chrono::minutes(10))).throw_if_error();
  for (const RankTotals& totals : all) {
    report.digest += totals.digest;
    report.canaries += totals.canaries;
    report.canary_max_relative_error =
        std::max(report.canary_max_relative_error, totals.canary_error);
  }
}

}  // namespace

std::vector<TraceRequest> replay_requests(const ReplayOptions& options) {
  const auto limit = static_cast<std::size_t>(options.requests);
  std::vector<TraceRequest> requests =
      options.trace ? read_trace(*options.trace, limit)
                    : built_in_workload(limit == 0 ? 1000 : limit, options.seed);
  if (requests.empty()) fail(ErrorCode::kInvalidArgument, "the trace holds no request");
  const auto scaled = [&](std::int64_t length) {
    return std::max<std::int64_t>(1,
                                  std::llround(static_cast<double>(length) * options.length_scale));
  };
  for (TraceRequest& request : requests) {
    request.input_length = scaled(request.input_length);
    request.output_length = scaled(request.output_length);
  }
  return requests;
}

ReplayReport replay(const ReplayOptions& options, const std::vector<TraceRequest>& requests,
                    Communicator& communicator, std::FILE* terminal) {
  const AttentionShape shape = attention_shape(options);
  const std::int32_t pages = page_budget(options.kv_gib, options.layers, shape.row());
  const int threads = options.threads > 0 ? options.threads : threads_per_worker(communicator);
  const WorkerDevice device =
      open_device(options.backend, threads, communicator, options.backend_options);
  Backend& backend = *device.backend;
  const PoolCosts costs = agree_on_costs(options.costs, host_name(), communicator);
  SyntheticClient client(shape, backend, options.seed, options.canary_rate);
  const WorkerConfig config{.attention = shape,
                            .layers = options.layers,
                            .pages = pages,
                            .leaf_tokens = options.leaf_tokens,
                            .exchange = options.exchange,
                            .costs = costs.costs,
                            .workers_per_node = costs.workers_per_node,
                            .round_timeout = std::chrono::milliseconds(options.round_timeout_ms),
                            .order_timeout = order_timeout(options)};
  Worker worker(config, backend, communicator, client, device.exchange.get());
  ReplayReport report;
  if (communicator.rank() == 0) {
    report.workers = communicator.size();
    report.backend = backend.name();
    report.costs = costs.source;
    report.communicator = device.exchange_name(communicator);
    Leader leader(options, requests, communicator.size(), pages, config.cost_model(), worker,
                  report);
    leader.run(terminal);
  } else {
    for (bool stop = false; !stop;) {
      const RoundReport round = worker.follow();
      round.status.throw_if_error();
      stop = round.stop;
    }
  }
  add_totals(client, communicator, report);
  return report;
}

}  // namespace tributary
