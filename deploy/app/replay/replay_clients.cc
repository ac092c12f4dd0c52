#include "deploy/app/replay/replay_clients.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "deploy/app/replay/progress.h"
#include "deploy/app/replay/synthetic_tokens.h"

namespace tributary {
namespace {

using Clock = Deadline::Clock;

/// Rows that are generated and pushed at a time; bounds the memory of a client to a few MiB.
constexpr std::int64_t kPushRows = 4096;

/// State that all clients share: the clock, the bar, and whether one has failed.
struct Run {
  const ReplayOptions& options;
  const std::vector<TraceRequest>& requests;
  const std::function<void()>& step_done;  // may be empty
  Clock::time_point begin = Clock::now();
  std::atomic<bool> failed{false};
  std::atomic<std::size_t> running{0};
  std::mutex mutex;
  std::int64_t tokens = 0;  // under the mutex
  Progress progress;        // under the mutex
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
    const Deadline deadline = Deadline::after(std::chrono::seconds(2));
    for (const Running& sequence : running_) {
      if (!status_of([&] { client_->free(sequence.handle, deadline); }).ok()) break;
    }
  }
  ReplayClient(const ReplayClient&) = delete;
  ReplayClient& operator=(const ReplayClient&) = delete;

  void run() {
    while (!run_.failed && (!waiting_.empty() || !running_.empty())) {
      admit();
      if (running_.empty()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until the next arrival
        continue;
      }
      step();
    }
  }

  /// Adds what this client did.
  void add_to(ReplayReport& report, std::vector<double>& step_us,
              std::vector<double>& fill_us) const {
    report.steps += static_cast<std::int64_t>(step_us_.size());
    report.tokens += tokens_decoded_;
    report.prompt_tokens += prompt_tokens_;
    for (const double us : step_us_) report.step_seconds += us * 1e-6 / options_.clients;
    step_us.insert(step_us.end(), step_us_.begin(), step_us_.end());
    fill_us.insert(fill_us.end(), fill_us_.begin(), fill_us_.end());
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
  };

  [[nodiscard]] bool arrived(const TraceRequest& request) const {
    return options_.speed <= 0 ||
           (request.timestamp_ms - run_.requests.front().timestamp_ms) / 1000 / options_.speed <=
               seconds_since(run_.begin);
  }

  void admit() {
    while (!waiting_.empty() && running_.size() < batch_ && Clock::now() >= next_admission_) {
      const std::size_t index = waiting_.front();
      const TraceRequest& request = run_.requests[index];
      if (!arrived(request)) return;
      try {
        running_.push_back({static_cast<std::int64_t>(index),
                            client_->admit({.prompt_tokens = request.input_length,
                                            .max_new_tokens = request.output_length,
                                            .spread = options_.spread,
                                            .idempotency_key = {}}),
                            request.output_length});
      } catch (const PoolFullError& full) {
        next_admission_ = Clock::now() + full.retry_after();  // the others go on meanwhile
        return;
      }
      waiting_.pop_front();
      ++run_.running;
      fill(running_.back());
      prompt_tokens_ += request.input_length;
    }
  }

  /// All rows of the prompt, layer by layer, as a prefill computes them.
  void fill(const Running& sequence) {
    use_shape(sequence.handle.shape);
    const SequenceHandle& handle = sequence.handle;
    const auto begun = Clock::now();
    const std::size_t row_bytes = tokens_->shape().row_bytes();
    for (int layer = 0; layer < handle.shape.layers; ++layer) {
      for (std::int64_t begin = 0; begin < handle.prompt_tokens; begin += kPushRows) {
        const std::int64_t count = std::min(kPushRows, handle.prompt_tokens - begin);
        rows_.resize(static_cast<std::size_t>(count) * row_bytes);
        tokens_->write_rows(sequence.tag, layer, begin, count, rows_.data());
        client_->push_rows(handle, layer, begin, rows_);
      }
    }
    client_->wait_ready(handle);
    fill_us_.push_back(seconds_since(begun) * 1e6);
  }

  void use_shape(const PoolShape& shape) {
    if (!tokens_) {
      shape_ = shape;
      tokens_.emplace(shape, options_.seed, options_.canary_rate);
    }
    if (shape_ != shape) {
      fail(ErrorCode::kUnsupported, "the service's pools differ in shape: replay needs them alike");
    }
  }

  /// All running sequences through all layers.
  void step() {
    const AttentionShape& shape = tokens_->shape();
    std::vector<std::int32_t> accepted;
    std::size_t tokens = 0;
    for (const Running& sequence : running_) {
      accepted.push_back(static_cast<std::int32_t>(
          std::min<std::int64_t>(options_.tokens_per_step, sequence.remaining)));
      tokens += static_cast<std::size_t>(accepted.back());
    }
    records_.resize(tokens * shape.token_record_bytes());
    states_.resize(tokens * shape.state_shape().record_floats());
    Clock::duration spent{0};
    const auto timed = [&](const auto& call) {
      const auto begin = Clock::now();
      call();
      spent += Clock::now() - begin;
    };
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const std::vector<LayerItem> items = generate(layer, accepted);
      timed([&] { client_->attend(items, layer); });
      take(layer, accepted);
    }
    std::vector<SequenceHandle*> handles;
    for (Running& sequence : running_) handles.push_back(&sequence.handle);
    timed([&] { client_->commit(handles, accepted); });
    step_us_.push_back(std::chrono::duration<double, std::micro>(spent).count());
    if (run_.step_done) run_.step_done();
    end_step(accepted);
  }

  std::vector<LayerItem> generate(int layer, const std::vector<std::int32_t>& accepted) {
    const AttentionShape& shape = tokens_->shape();
    std::vector<LayerItem> items;
    std::size_t token = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Running& sequence = running_[i];
      const std::byte* record = &records_[token * shape.token_record_bytes()];
      items.push_back({.sequence = &sequence.handle,
                       .tokens = accepted[i],
                       .query = {record, shape.token_record_bytes()},
                       .row = {record + shape.query_bytes(), shape.token_record_bytes()},
                       .output = &states_[token * shape.state_shape().record_floats()]});
      for (std::int32_t t = 0; t < accepted[i]; ++t, ++token) {
        tokens_->write_record(sequence.tag, layer, sequence.handle.length + t,
                              &records_[token * shape.token_record_bytes()]);
      }
    }
    return items;
  }

  void take(int layer, const std::vector<std::int32_t>& accepted) {
    const StateShape shape = tokens_->shape().state_shape();
    const std::size_t output =
        static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.width);
    std::size_t token = 0;
    for (std::size_t i = 0; i < running_.size(); ++i) {
      for (std::int32_t t = 0; t < accepted[i]; ++t, ++token) {
        tokens_->take_output(running_[i].tag, layer, running_[i].handle.length + t,
                             std::span(states_).subspan(token * shape.record_floats(), output));
      }
    }
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
    const std::scoped_lock lock(run_.mutex);
    run_.tokens += tokens;
    run_.progress.update(run_.tokens, run_.running);
  }

  Run& run_;
  const ReplayOptions& options_;
  std::unique_ptr<TierClient> client_;
  PoolShape shape_;
  std::optional<SyntheticTokens> tokens_;  // once the pool's shape is known
  std::deque<std::size_t> waiting_;
  std::vector<Running> running_;
  std::size_t batch_ = 1;
  Clock::time_point next_admission_{};
  std::vector<std::byte> rows_, records_;
  std::vector<float> states_;
  std::vector<double> step_us_, fill_us_;
  std::int64_t tokens_decoded_ = 0;
  std::int64_t prompt_tokens_ = 0;
};

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
          .mutex = {},
          .progress = Progress(terminal, total_tokens)};
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
  report.requests = static_cast<std::int64_t>(requests.size());
  report.seconds = seconds_since(run.begin);
  std::vector<double> step_us, fill_us;
  for (const ReplayClient& client : clients) client.add_to(report, step_us, fill_us);
  report.step_us = percentiles(step_us);
  report.fill_us = percentiles(fill_us);
  return report;
}

}  // namespace tributary
