#include "deploy/app/replay/replay_clients.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/mla_shape.h"
#include "core/workload/trace_prefix.h"
#include "deploy/app/info/info.h"
#include "deploy/app/replay/progress.h"
#include "deploy/app/replay/synthetic_tokens.h"
#include "deploy/runtime/processor_name.h"

namespace tributary {
namespace {

/// Rows that are generated and pushed at a time; bounds the memory of a client to a few MiB.
constexpr std::int64_t kPushRows = 4096;
/// A sequence that lost rows may wait for others to end and make room.
constexpr auto kRecovery = std::chrono::minutes(2);

// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): a signal handler has no other
volatile std::sig_atomic_t ended_by = 0;
// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

/// While it lives, the first SIGINT or SIGTERM ends the run in order; another one ends the process.
class EndSignals {
 public:
  EndSignals() {
    ended_by = 0;
    for (const int number : {SIGINT, SIGTERM}) std::signal(number, note);
  }
  ~EndSignals() {
    for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_DFL);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

 private:
  static void note(int number) {
    ended_by = number;
    std::signal(number, SIG_DFL);
  }
};

/// State that all clients share: the clock, the bar, and whether one has failed.
struct Run {
  const ReplayOptions& options;
  const std::vector<TraceRequest>& requests;
  const std::function<void()>& step_done;  // may be empty
  RowOrigins origins;
  Time begin = std::chrono::steady_clock::now();
  std::atomic<bool> failed{false};
  std::atomic<std::size_t> running{0};
  std::mutex mutex;
  // Under the mutex:
  Progress progress;
  std::int64_t tokens = 0;
  std::int64_t finished = 0;
  std::int64_t good = 0;  // of these, within the bound on the time of a token
  Samples ttft_s{}, tpot_ms{}, request_tpot_ms{};
};

/// One client: every `clients`-th request, continuously batched.
class ReplayClient {
 public:
  ReplayClient(Run& run, int index, std::unique_ptr<TierClient> client)
      : run_(run), options_(run.options), client_(std::move(client)) {
    for (auto i = static_cast<std::size_t>(index); i < run.requests.size();
         i += static_cast<std::size_t>(options_.clients)) {
      waiting_.push_back(i);
    }
    // The first clients have one more, so that the shares add up to the whole.
    batch_ = static_cast<std::size_t>(
        std::max(1, (options_.max_batch + options_.clients - 1 - index) / options_.clients));
  }

  ~ReplayClient() {
    // After a failure: what is still running. A tier that does not answer frees it by itself.
    (void)status_of([this] { free_running(Deadline::after(std::chrono::seconds(2))); });
  }
  ReplayClient(const ReplayClient&) = delete;
  ReplayClient& operator=(const ReplayClient&) = delete;

  void run() {
    while (!ended() && (!waiting_.empty() || !running_.empty())) {
      admit();
      if (ended()) break;
      if (running_.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until the next arrival
        continue;
      }
      step();
    }
    if (ended_by != 0 && !run_.failed) free_running({});  // in a call as any other
  }

  /// Of the pools, once it has pushed a prompt.
  [[nodiscard]] const PoolShape& shape() const { return shape_; }

  /// Adds what this client did.
  void add_to(ReplayReport& report, std::vector<double>& step_us, std::vector<double>& fill_us,
              std::vector<double>& recovery_us) const {
    report.steps += static_cast<std::int64_t>(step_us_.size());
    report.tokens += tokens_decoded_;
    report.prompt_tokens += prompt_tokens_;
    report.present_tokens += present_tokens_;
    report.rows_again += rows_again_;
    for (const double us : step_us_) report.step_seconds += us * 1e-6 / options_.clients;
    step_us.insert(step_us.end(), step_us_.begin(), step_us_.end());
    fill_us.insert(fill_us.end(), fill_us_.begin(), fill_us_.end());
    recovery_us.insert(recovery_us.end(), recovery_us_.begin(), recovery_us_.end());
    if (!tokens_) return;
    const auto canary = tokens_->check_canaries();
    report.digest += tokens_->digest().value();
    report.canaries += canary.checked;
    report.canary_max_relative_error =
        std::max(report.canary_max_relative_error, canary.max_relative_error);
  }

 private:
  struct Running {
    std::int64_t tag;
    SequenceHandle handle;
    std::int64_t remaining;
    Time arrived;
    double later_ms = 0;  // of its steps after the first
    std::int64_t later_tokens = 0;
    bool has_first = false;
    Digest step = {};                      // of the outputs of its open step
    std::optional<Time> lost_since = {};   // rows of it, with a worker
    std::optional<Time> waits_since = {};  // for room that it was promised there
  };

  void free_running(std::optional<Deadline> deadline) {
    std::vector<const SequenceHandle*> handles;
    for (const Running& sequence : running_) handles.push_back(&sequence.handle);
    client_->free(handles, deadline);
    running_.clear();
  }

  [[nodiscard]] bool ended() const { return run_.failed || ended_by != 0; }

  /// Without a pace, when it is next.
  [[nodiscard]] Time arrival(const TraceRequest& request) const {
    if (options_.speed <= 0) return std::max(run_.begin, next_since_);
    const double ms = (request.timestamp_ms - run_.requests.front().timestamp_ms) / options_.speed;
    return run_.begin +
           std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms));
  }

  void admit() {
    while (!ended() && !waiting_.empty() && running_.size() < batch_ &&
           std::chrono::steady_clock::now() >= next_admission_) {
      const std::size_t index = waiting_.front();
      const TraceRequest& request = run_.requests[index];
      if (next_since_ == Time{}) next_since_ = std::chrono::steady_clock::now();
      const Time arrived = arrival(request);
      if (arrived > std::chrono::steady_clock::now()) return;
      try {
        running_.push_back({.tag = static_cast<std::int64_t>(index),
                            .handle = client_->admit({.prompt_tokens = request.input_length,
                                                      .max_new_tokens = request.output_length,
                                                      .spread = options_.spread,
                                                      .prefix = prefix(request)}),
                            .remaining = request.output_length,
                            .arrived = arrived});
        next_since_ = {};
      } catch (const PoolFullError& full) {
        next_admission_ =
            std::chrono::steady_clock::now() + full.retry_after();  // the others go on meanwhile
        return;
      }
      waiting_.pop_front();
      ++run_.running;
      if (!fill(running_.back())) continue;
      prompt_tokens_ += request.input_length;
      present_tokens_ += running_.back().handle.present_tokens;
    }
  }

  [[nodiscard]] Prefix prefix(const TraceRequest& request) const {
    if (options_.no_prefixes) return {};
    // Blocks of a page divide the leaf of any pool.
    return trace_prefix(request.hash_ids, request.input_length, options_.length_scale, kPageTokens);
  }

  /// Pushes the prompt. One that loses rows meanwhile is admitted again later: returns false.
  [[nodiscard]] bool fill(const Running& sequence) {
    try {
      push_prompt(sequence);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kWorkerLost) throw;
      client_->free(sequence.handle);
      waiting_.push_front(static_cast<std::size_t>(sequence.tag));
      running_.pop_back();
      --run_.running;
      return false;
    }
    return true;
  }

  /// The rows of the prompt that the pool has not, layer by layer, as a prefill computes them.
  void push_prompt(const Running& sequence) {
    use_shape(sequence.handle.shape);
    const SequenceHandle& handle = sequence.handle;
    const auto begun = std::chrono::steady_clock::now();
    for (int layer = 0; layer < handle.shape.layers; ++layer) {
      push(sequence, layer, handle.present_tokens, handle.prompt_tokens);
    }
    if (ended()) return;
    client_->wait_ready(handle);
    fill_us_.push_back(seconds_since(begun) * 1e6);
  }

  void push(const Running& sequence, int layer, std::int64_t begin, std::int64_t end) {
    for (; begin < end && !ended(); begin += kPushRows) {
      const std::int64_t count = std::min(kPushRows, end - begin);
      rows_.resize(static_cast<std::size_t>(count) * tokens_->shape().row_bytes());
      tokens_->write_rows(sequence.tag, layer, begin, count, rows_.data());
      client_->push_rows(sequence.handle, layer, begin, rows_);
      show_progress();
    }
  }

  void use_shape(const PoolShape& shape) {
    if (!tokens_) {
      shape_ = shape;
      tokens_.emplace(shape, options_.seed, options_.canary_rate, &run_.origins);
    }
    if (shape_ != shape) {
      fail(ErrorCode::kUnsupported, "the service's pools differ in shape: replay needs them alike");
    }
  }

  /// All running sequences that have their rows through all layers.
  void step() {
    const AttentionShape& shape = tokens_->shape();
    std::vector<std::int32_t> accepted(running_.size(), 0);
    std::vector<std::size_t> active;
    std::size_t tokens = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      if (running_[i].lost_since && !recovered(running_[i])) continue;
      active.push_back(i);
      accepted[i] = static_cast<std::int32_t>(
          std::min<std::int64_t>(options_.tokens_per_step, running_[i].remaining));
      tokens += static_cast<std::size_t>(accepted[i]);
    }
    if (active.empty()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until there is room
      return;
    }
    records_.resize(tokens * shape.token_record_bytes());
    states_.resize(tokens * shape.state_shape().record_floats());
    spent_ = {};
    for (int layer = 0; layer < shape_.layers; ++layer) attend(active, layer, accepted);
    if (active.empty()) return;
    for (const std::size_t i : active) running_[i].waits_since.reset();
    commit(active, accepted);
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].step = {};
      if (std::ranges::count(active, i) == 0) accepted[i] = 0;
    }
    step_us_.push_back(std::chrono::duration<double, std::micro>(spent_).count());
    if (run_.step_done) run_.step_done();
    time_tokens(accepted, step_us_.back() * 1e-3);
    end_step(accepted);
  }

  /// Of a call on many sequences, those that lost a worker, or wait for room since one was lost.
  template <typename Call>
  std::vector<ItemFailure> lost_in(const Call& call) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<ItemFailure> lost;
    try {
      call();
    } catch (const ItemsError& error) {
      for (const ItemFailure& failure : error.failed()) {
        const ErrorCode code = failure.status.code();
        if (code != ErrorCode::kWorkerLost && code != ErrorCode::kUnavailable) throw;
        lost.push_back(failure);
      }
    }
    spent_ += std::chrono::steady_clock::now() - begin;
    return lost;
  }

  /// One layer. Those whose step has ended with a worker are not active any more.
  void attend(std::vector<std::size_t>& active, int layer,
              const std::vector<std::int32_t>& accepted) {
    std::vector<std::size_t> now = active;
    while (!now.empty()) {
      const std::vector<LayerItem> items = generate(now, layer, accepted);
      const auto lost = lost_in([&] { client_->attend(items, layer); });
      take(now, layer, accepted, lost);
      std::vector<std::size_t> again;
      for (const ItemFailure& failure : lost) {
        const std::size_t i = now[failure.index];
        if (waits_for_room(running_[i], failure.status) || step_has_ended(running_[i])) {
          std::erase(active, i);
        } else {
          again.push_back(i);
        }
      }
      now = std::move(again);
    }
  }

  void commit(std::vector<std::size_t>& active, const std::vector<std::int32_t>& accepted) {
    std::vector<std::size_t> now = active;
    while (!now.empty()) {
      std::vector<SequenceHandle*> handles;
      std::vector<std::int32_t> tokens;
      for (const std::size_t i : now) {
        handles.push_back(&running_[i].handle);
        tokens.push_back(accepted[i]);
      }
      const auto lost = lost_in([&] { client_->commit(handles, tokens); });
      std::vector<std::size_t> again;
      for (const auto& [k, status] : lost) {
        Running& sequence = running_[now[k]];
        if (status.code() == ErrorCode::kUnavailable) status.throw_if_error();
        const std::int64_t before = sequence.handle.length;
        const bool ended = step_has_ended(sequence);
        if (sequence.handle.length > before) continue;  // the answer was lost alone
        if (ended) {
          std::erase(active, now[k]);
        } else {
          again.push_back(now[k]);
        }
      }
      now = std::move(again);
    }
  }

  /// Whether the sequence has to grow into a leaf that was promised where a worker was lost, and
  /// has no room elsewhere yet. Others may end meanwhile.
  static bool waits_for_room(Running& sequence, const Status& why) {
    if (why.code() != ErrorCode::kUnavailable) return false;
    const Time now = std::chrono::steady_clock::now();
    if (!sequence.waits_since) sequence.waits_since = now;
    if (now > *sequence.waits_since + kRecovery) why.throw_if_error();
    return true;
  }

  /// After a call has said that a worker is lost: whether the sequence's step has ended with it,
  /// and not by its commit. Then it is to recover before its next one.
  bool step_has_ended(Running& sequence) {
    const std::uint32_t epoch = sequence.handle.epoch;
    const std::int64_t length = sequence.handle.length;
    sequence.handle = client_->query(sequence.handle);
    if (sequence.handle.epoch == epoch) return false;
    sequence.lost_since = std::chrono::steady_clock::now();
    if (sequence.handle.length == length) {
      tokens_->take_back(std::exchange(sequence.step, {}));
    }
    return true;
  }

  /// Pushes the rows again that a sequence has lost with a worker: all are known here. Returns
  /// false while there is no room for them, or where others were lost meanwhile.
  [[nodiscard]] bool recovered(Running& sequence) {
    if (std::chrono::steady_clock::now() > *sequence.lost_since + kRecovery) {
      fail(ErrorCode::kDeadlineExceeded, "sequence {} has not recovered from a lost worker",
           sequence.handle.id);
    }
    try {
      sequence.handle = client_->query(sequence.handle);
      const SequenceHandle& handle = sequence.handle;
      if (std::ranges::count(handle.lost, -1, &Extent::rank) > 0) return false;
      for (const Extent& lost : handle.lost) {
        for (int layer = 0; layer < handle.shape.layers; ++layer) {
          push(sequence, layer, lost.begin, lost.end);
        }
        rows_again_ += lost.end - lost.begin;
      }
      if (ended()) return false;
      client_->wait_ready(handle);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kWorkerLost) throw;
      return false;
    }
    recovery_us_.push_back(seconds_since(*sequence.lost_since) * 1e6);
    sequence.lost_since.reset();
    return true;
  }

  std::vector<LayerItem> generate(const std::vector<std::size_t>& of, int layer,
                                  const std::vector<std::int32_t>& accepted) {
    const AttentionShape& shape = tokens_->shape();
    std::vector<LayerItem> items;
    std::size_t token = 0;
    for (const std::size_t i : of) {
      Running& sequence = running_[i];
      const std::byte* record = &records_[token * shape.token_record_bytes()];
      items.push_back({.sequence = &sequence.handle,
                       .tokens = accepted[i],
                       .query = {record, shape.token_record_bytes()},
                       .row = {record + shape.query_bytes(), shape.token_record_bytes()},
                       .selected = shape.topk == 0 ? TokenData{}
                                                   : TokenData{record + shape.selected_offset(),
                                                               shape.token_record_bytes()},
                       .selected_count = shape.topk,
                       .output = &states_[token * shape.state_shape().record_floats()]});
      for (std::int32_t t = 0; t < accepted[i]; ++t, ++token) {
        tokens_->write_record(sequence.tag, layer, sequence.handle.length + t,
                              &records_[token * shape.token_record_bytes()]);
      }
    }
    return items;
  }

  /// The outputs of a layer, but for those that have none.
  void take(const std::vector<std::size_t>& of, int layer,
            const std::vector<std::int32_t>& accepted, const std::vector<ItemFailure>& without) {
    const StateShape shape = tokens_->shape().state_shape();
    const std::size_t output =
        static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.width);
    std::size_t token = 0;
    for (std::size_t k = 0; k < of.size(); ++k) {
      Running& sequence = running_[of[k]];
      const bool skipped = std::ranges::count(without, k, &ItemFailure::index) > 0;
      const Digest before = tokens_->digest();
      for (std::int32_t t = 0; t < accepted[of[k]]; ++t, ++token) {
        if (skipped) continue;
        tokens_->take_output(sequence.tag, layer, sequence.handle.length + t,
                             std::span(states_).subspan(token * shape.record_floats(), output));
      }
      sequence.step.add(tokens_->digest());
      sequence.step.remove(before);
    }
  }

  /// Notes the times that a user of these sequences sees.
  void time_tokens(const std::vector<std::int32_t>& accepted, double step_ms) {
    const std::scoped_lock lock(run_.mutex);
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& sequence = running_[i];
      if (accepted[i] == 0) continue;
      if (std::exchange(sequence.has_first, true)) {
        run_.tpot_ms.add(step_ms / accepted[i], accepted[i]);
        sequence.later_ms += step_ms;
        sequence.later_tokens += accepted[i];
      } else {
        run_.ttft_s.add(seconds_since(sequence.arrived));
      }
      if (sequence.remaining > accepted[i]) continue;
      const double mean_ms =
          sequence.later_ms / static_cast<double>(std::max<std::int64_t>(1, sequence.later_tokens));
      if (sequence.later_tokens > 0) run_.request_tpot_ms.add(mean_ms);
      if (mean_ms <= options_.tpot_ms) ++run_.good;
      ++run_.finished;
    }
  }

  void show_progress() {
    const std::scoped_lock lock(run_.mutex);
    run_.progress.update(run_.tokens, run_.running);
  }

  void end_step(const std::vector<std::int32_t>& accepted) {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      running_[i].remaining -= accepted[i];
      tokens += accepted[i];
    }
    tokens_decoded_ += tokens;
    for (std::size_t i = running_.size(); i-- > 0;) {
      if (running_[i].remaining > 0) continue;
      client_->free(running_[i].handle);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      --run_.running;
      next_admission_ = {};  // there is room again
    }
    {
      const std::scoped_lock lock(run_.mutex);
      run_.tokens += tokens;
    }
    show_progress();
  }

  Run& run_;
  const ReplayOptions& options_;
  std::unique_ptr<TierClient> client_;
  PoolShape shape_;
  std::optional<SyntheticTokens> tokens_;  // once the pool's shape is known
  std::deque<std::size_t> waiting_;
  std::vector<Running> running_;
  std::size_t batch_ = 1;
  Time next_admission_{};
  Time next_since_{};  // since when the next request waits
  std::vector<std::byte> rows_, records_;
  std::vector<float> states_;
  Duration spent_{};  // in calls of the step
  std::vector<double> step_us_, fill_us_, recovery_us_;
  std::int64_t tokens_decoded_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t present_tokens_ = 0;
  std::int64_t rows_again_ = 0;
};

/// A figure of one layer is easily taken for a step's.
std::string layers_text(const ReplayOptions& options, int layers) {
  const int all = options.service.given() ? layers : find_mla_shape(options.shape).layers;
  return all > layers ? fmt::format("{} of {}'s {}: times are of {} layer{} (--layers)", layers,
                                    options.shape, all, layers, layers == 1 ? "" : "s")
                      : fmt::format("{}", layers);
}

std::vector<std::pair<std::string, std::string>> settings(const ReplayOptions& options,
                                                          const std::vector<TraceRequest>& requests,
                                                          const PoolShape& shape) {
  double prompt = 0;
  double output = 0;
  for (const TraceRequest& request : requests) {
    prompt += static_cast<double>(request.input_length);
    output += static_cast<double>(request.output_length);
  }
  const auto count = static_cast<double>(requests.size());
  return {{"version", build_text()},
          {"processor", processor_name()},
          {"workload", options.trace ? options.trace->string() : "built-in"},
          {"seed", fmt::format("{}", options.seed)},
          {"requests of it", fmt::format("{}, prompts of {:.1f} tokens, outputs of {:.1f} (means)",
                                         requests.size(), prompt / count, output / count)},
          {"shape", fmt::format("{} heads, rows of {} + {} as {}, queries {}, leaves of {}",
                                shape.heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
                                row_format_name(shape.row_format), dtype_name(shape.query_dtype),
                                shape.leaf_tokens)},
          {"layers", layers_text(options, shape.layers)},
          {"batch", fmt::format("up to {}, {} token{} a step, spread {}", options.max_batch,
                                options.tokens_per_step, options.tokens_per_step == 1 ? "" : "s",
                                spread_policy_name(options.spread))},
          {"pace", options.speed > 0 ? fmt::format("{:g} times the trace's", options.speed)
                                     : "as capacity allows"}};
}

}  // namespace

ReplayReport run_clients(const ReplayOptions& options, const std::vector<TraceRequest>& requests,
                         std::FILE* terminal,
                         const std::function<std::unique_ptr<TierClient>()>& make_client,
                         const std::function<void()>& step_done) {
  std::int64_t total_tokens = 0;
  for (const TraceRequest& request : requests) total_tokens += request.output_length;
  Run run{.options = options,
          .requests = requests,
          .step_done = step_done,
          .origins = RowOrigins(requests, options.length_scale),
          .mutex = {},
          .progress = Progress(terminal, total_tokens)};
  const EndSignals signals;
  std::deque<ReplayClient> clients;
  for (int i = 0; i < options.clients; ++i) clients.emplace_back(run, i, make_client());
  std::vector<Status> outcomes(clients.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      threads.emplace_back([&, i] {
        outcomes[i] = status_of([&] { clients[i].run(); });
        if (!outcomes[i].ok()) run.failed = true;
      });
    }
  }
  for (const Status& outcome : outcomes) outcome.throw_if_error();

  ReplayReport report;
  report.seconds = seconds_since(run.begin);
  report.ended_by = ended_by;
  report.requests = run.finished;
  report.ttft_s = run.ttft_s.distribution();
  report.tpot_ms = run.tpot_ms.distribution();
  report.request_tpot_ms = run.request_tpot_ms.distribution();
  report.tpot_bound_ms = options.tpot_ms;
  report.goodput_per_s = static_cast<double>(run.good) / std::max(report.seconds, 1e-9);
  std::vector<double> step_us, fill_us, recovery_us;
  for (const ReplayClient& client : clients) {
    client.add_to(report, step_us, fill_us, recovery_us);
  }
  report.settings = settings(options, requests, clients.front().shape());
  report.step_us = percentiles(step_us);
  report.fill_us = percentiles(fill_us);
  report.recovery_us = percentiles(recovery_us);
  return report;
}

}  // namespace tributary
