// The cost of a layer of a step through a running tier, compared with the same round of a pool in
// this process and beside pulls, and the speed of pushing and pulling rows. Prints one JSON object;
// bench/service.sh runs it beside UCX's own benchmark and prints ratios.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/self_communicator.h"
#include "core/base/deadline.h"
#include "core/base/limits.h"
#include "deploy/app/bench/step_case.h"
#include "deploy/app/bench/timing.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::bench {
namespace {

struct Options {
  std::string url;
  std::string certificate_authority;  // PEM file; empty: the system's
  double seconds = 1;                 // per figure
  bool busy_poll = false;
  bool shared_memory = false;
};

/// The median time of one call, in microseconds, over `seconds` of calls after a tenth for warm-up.
template <typename Call>
double median_us(double seconds, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  while (seconds_since(begin) < seconds / 10) call();
  std::vector<double> times;
  while (times.empty() || seconds_since(begin) < seconds * 1.1) {
    const auto start = std::chrono::steady_clock::now();
    call();
    times.push_back(seconds_since(start) * 1e6);
  }
  return median(std::move(times));
}

/// One round over a page of context on one worker, without a service.
double pool_round_us(const AttentionShape& shape, double seconds) {
  const auto communicator = make_self_communicator();
  const auto backend = make_backend("cpu", 1);
  StepCase steps({.attention = shape, .context = kPageTokens, .leaf_tokens = kPageTokens}, *backend,
                 *communicator);
  return median_us(seconds, [&] { (void)steps.run(); });
}

void push_all(TierClient& client, const SequenceHandle& sequence,
              const std::vector<std::byte>& rows) {
  for (int layer = 0; layer < sequence.shape.layers; ++layer) {
    client.push_rows(sequence, layer, 0, rows);
  }
}

constexpr std::int64_t kLongPrompt = 16'384;

std::vector<std::byte> rows_of(const AttentionShape& shape, std::int64_t tokens) {
  return std::vector<std::byte>(static_cast<std::size_t>(tokens) * shape.row_bytes());
}

AdmitRequest request(std::int64_t prompt_tokens) {
  AdmitRequest options;
  options.prompt_tokens = prompt_tokens;
  options.max_new_tokens = 1;
  return options;
}

void pull_all(TierClient& client, const SequenceHandle& sequence, std::vector<std::byte>& rows) {
  for (int layer = 0; layer < sequence.shape.layers; ++layer) {
    const PulledRows part{&sequence, layer, 0, rows};
    client.pull_rows(std::span(&part, 1));
  }
}

/// Bytes a second: pushed, and pulled on the same connection, in turns.
struct RowRates {
  double push = 0, pull = 0;
};

RowRates row_rates(TierClient& client, double seconds) {
  std::uint64_t bytes = 0;
  double push_s = 0;
  double pull_s = 0;
  std::vector<std::byte> rows;
  const auto begin = std::chrono::steady_clock::now();
  while (seconds_since(begin) < 2 * seconds) {
    const SequenceHandle sequence =
        client.admit_waiting(request(kLongPrompt), Deadline::after(std::chrono::seconds(20)));
    if (rows.empty()) rows = rows_of(sequence.shape, kLongPrompt);
    auto start = std::chrono::steady_clock::now();
    push_all(client, sequence, rows);
    push_s += seconds_since(start);
    start = std::chrono::steady_clock::now();
    pull_all(client, sequence, rows);
    pull_s += seconds_since(start);
    bytes += rows.size() * static_cast<std::size_t>(sequence.shape.layers);
    client.free(sequence);
  }
  const auto all = static_cast<double>(bytes);
  return {all / push_s, all / pull_s};
}

enum class Beside { kNothing, kPushes, kPulls };
constexpr std::size_t kBesides = 3;

/// Another client, which pushes prompts, or pulls one, again and again.
class Other {
 public:
  explicit Other(const TierClientConfig& config)
      : thread_([this, config] {
          TierClient client(config);
          std::vector<std::byte> rows;
          const auto start = [&] {
            SequenceHandle sequence = client.admit_waiting(
                request(kLongPrompt), Deadline::after(std::chrono::seconds(20)));
            if (rows.empty()) rows = rows_of(sequence.shape, kLongPrompt);
            push_all(client, sequence, rows);
            return sequence;
          };
          const SequenceHandle pulled = start();
          while (!ended_) {
            const Beside now = now_;
            if (now == Beside::kPulls) pull_all(client, pulled, rows);
            if (now == Beside::kPushes) client.free(start());
            if (now == Beside::kNothing) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          client.free(pulled);
        }) {}
  ~Other() { ended_ = true; }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;
  void turn_to(Beside what) { now_ = what; }

 private:
  std::atomic<Beside> now_ = Beside::kNothing;
  std::atomic<bool> ended_ = false;
  std::jthread thread_;  // goes first
};

/// Times of a layer, in microseconds, beside each; in turns of a tenth of a second.
template <typename Call>
std::array<std::vector<double>, kBesides> layer_times(const TierClientConfig& config,
                                                      double seconds, Call call) {
  constexpr double kTurn = 0.1;
  std::array<std::vector<double>, kBesides> times;
  Other other(config);
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t what = 0; seconds_since(begin) < kBesides * seconds;
       what = (what + 1) % kBesides) {
    other.turn_to(static_cast<Beside>(what));
    const auto turn = std::chrono::steady_clock::now();
    while (seconds_since(turn) < kTurn) {
      const auto start = std::chrono::steady_clock::now();
      call();
      if (seconds_since(turn) > kTurn / 5) times.at(what).push_back(seconds_since(start) * 1e6);
    }
  }
  return times;
}

double p99(std::vector<double> times) {
  if (times.empty()) return 0;
  const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() * 99 / 100);
  std::ranges::nth_element(times, at);
  return *at;
}

void run(const Options& options) {
  TierClientConfig config;
  config.url = options.url;
  config.certificate_authority = options.certificate_authority;
  config.busy_poll = options.busy_poll;
  config.shared_memory = options.shared_memory;
  TierClient client(config);
  SequenceHandle sequence = client.admit(request(kPageTokens - 1));
  const AttentionShape shape = sequence.shape;
  push_all(client, sequence, rows_of(shape, sequence.prompt_tokens));
  const std::vector<std::byte> input(shape.token_record_bytes());
  std::vector<float> output(shape.state_shape().record_floats());
  const LayerItem item{.sequence = &sequence,
                       .tokens = 1,
                       .query = {input.data()},
                       .row = {input.data() + shape.query_bytes()},
                       .output = output.data()};
  SequenceHandle* const handle = &sequence;
  const std::int32_t nothing = 0;
  const auto layer = [&] { client.attend(std::span(&item, 1), 0); };
  const double layer_us = median_us(options.seconds, layer);
  const auto [alone, pushes, pulls] = layer_times(config, options.seconds, layer);
  const double commit_us = median_us(
      options.seconds / 4, [&] { client.commit(std::span(&handle, 1), std::span(&nothing, 1)); });
  client.free(sequence);
  const RowRates rates = row_rates(client, options.seconds);
  fmt::print(
      "{{\"layer_us\": {:.2f}, \"commit_us\": {:.2f}, \"pool_round_us\": {:.2f}, "
      "\"ingest_bytes_per_s\": {:.4g}, \"pull_bytes_per_s\": {:.4g}, "
      "\"layer_alone_us\": {:.2f}, \"layer_alone_p99_us\": {:.2f}, "
      "\"layer_beside_pushes_us\": {:.2f}, \"layer_beside_pushes_p99_us\": {:.2f}, "
      "\"layer_beside_pulls_us\": {:.2f}, \"layer_beside_pulls_p99_us\": {:.2f}, "
      "\"input_bytes\": {}, \"output_bytes\": {}, \"push_bytes\": {}}}\n",
      layer_us, commit_us, pool_round_us(shape, options.seconds), rates.push, rates.pull,
      median(alone), p99(alone), median(pushes), p99(pushes), median(pulls), p99(pulls),
      input.size(), output.size() * sizeof(float), rows_of(shape, kLongPrompt).size());
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  tributary::bench::Options options;
  CLI::App app("One client of a running tier: latency of a layer, bandwidth of rows.");
  app.add_option("--service", options.url, "URL of the control plane")->required();
  app.add_option("--ca", options.certificate_authority, "Certificates to trust");
  app.add_option("--seconds", options.seconds, "Of each figure")->check(CLI::Range(0.01, 1000.0));
  app.add_flag("--busy-poll", options.busy_poll, "Spin instead of sleeping");
  app.add_flag("--shared-memory", options.shared_memory, "As the tier's workers");
  CLI11_PARSE(app, argc, argv);
  try {
    tributary::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "service_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
