// The cost of a layer of a step through a running tier, compared with the same round of a pool in
// this process, and the speed of pushing rows. Prints one JSON object; bench/service.sh runs it
// beside UCX's own benchmark and prints ratios.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <string>
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

std::vector<std::byte> rows_of(const AttentionShape& shape, std::int64_t tokens) {
  return std::vector<std::byte>(static_cast<std::size_t>(tokens) * shape.row_bytes());
}

AdmitRequest request(std::int64_t prompt_tokens) {
  AdmitRequest options;
  options.prompt_tokens = prompt_tokens;
  options.max_new_tokens = 1;
  return options;
}

double ingest_bytes_per_s(TierClient& client, double seconds) {
  constexpr std::int64_t kPrompt = 16'384;
  std::uint64_t bytes = 0;
  double busy = 0;
  std::vector<std::byte> rows;
  const auto begin = std::chrono::steady_clock::now();
  while (seconds_since(begin) < seconds) {
    const SequenceHandle sequence =
        client.admit_waiting(request(kPrompt), Deadline::after(std::chrono::seconds(20)));
    if (rows.empty()) rows = rows_of(sequence.shape, kPrompt);
    const auto start = std::chrono::steady_clock::now();
    push_all(client, sequence, rows);
    busy += seconds_since(start);
    bytes += rows.size() * static_cast<std::size_t>(sequence.shape.layers);
    client.free(sequence);
  }
  return static_cast<double>(bytes) / busy;
}

void run(const Options& options) {
  TierClientConfig config;
  config.url = options.url;
  config.certificate_authority = options.certificate_authority;
  config.busy_poll = options.busy_poll;
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
  const double layer_us =
      median_us(options.seconds, [&] { client.attend(std::span(&item, 1), 0); });
  const double commit_us = median_us(
      options.seconds / 4, [&] { client.commit(std::span(&handle, 1), std::span(&nothing, 1)); });
  client.free(sequence);
  fmt::print(
      "{{\"layer_us\": {:.2f}, \"commit_us\": {:.2f}, \"pool_round_us\": {:.2f}, "
      "\"ingest_bytes_per_s\": {:.4g}, \"input_bytes\": {}, \"output_bytes\": {}}}\n",
      layer_us, commit_us, pool_round_us(shape, options.seconds),
      ingest_bytes_per_s(client, options.seconds), input.size(), output.size() * sizeof(float));
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
  CLI11_PARSE(app, argc, argv);
  try {
    tributary::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "service_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
