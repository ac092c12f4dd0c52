// The C++ half of bench/python_calls.py: the calls that the Python package makes, without Python.
// Every line of its input asks for that many seconds of calls; the answer is a line of their times
// in microseconds, each with the processor time of the calling thread. So both halves take turns
// within one run.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/service/client/tier_client.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

using Clock = std::chrono::steady_clock;

double thread_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

template <typename Call>
void answer_with_times(Call call) {
  fmt::print("ready\n");
  std::fflush(stdout);
  for (double seconds = 0; std::cin >> seconds;) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    call();  // out of the other half's shadow
    do {
      const double used = thread_us();
      const auto start = Clock::now();
      call();
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      fmt::print("{:.2f}:{:.2f} ", took.count(), thread_us() - used);
    } while (Clock::now() < end);
    fmt::print("\n");
    std::fflush(stdout);
  }
}

/// The backend's own attend, without the merge of its leaves.
void attend(int heads, int length, int tokens, int threads) {
  const auto backend = make_cpu_backend({.threads = threads, .instruction_set = ""});
  DecodeCase decode(*backend, heads, tokens, std::span(&length, 1));
  answer_with_times([&] { decode.attend(); });
}

/// A layer of a step of one sequence, one new token.
void layer(const std::string& url) {
  TierClientConfig config;
  config.url = url;
  TierClient client(config);
  AdmitRequest request;
  request.prompt_tokens = kPageTokens - 1;
  request.max_new_tokens = 1;
  SequenceHandle sequence = client.admit(request);
  const PoolShape& shape = sequence.shape;
  const std::vector<std::byte> rows(static_cast<std::size_t>(request.prompt_tokens) *
                                    shape.row_bytes());
  for (int layer = 0; layer < shape.layers; ++layer) client.push_rows(sequence, layer, 0, rows);
  const std::vector<std::byte> query(static_cast<std::size_t>(shape.heads) *
                                     static_cast<std::size_t>(shape.latent_dim()) *
                                     dtype_bytes(shape.query_dtype));
  std::vector<float> output(shape.state_shape().record_floats());
  const LayerItem item{.sequence = &sequence,
                       .tokens = 1,
                       .query = {query.data()},
                       .row = {rows.data()},
                       .output = output.data()};
  answer_with_times([&] { client.attend(std::span(&item, 1), 0); });
  client.free(sequence);
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  CLI::App app("Times of calls without Python; bench/python_calls.py asks for them.");
  app.require_subcommand(1);
  int heads = 128;
  int length = 4096;
  int tokens = 1;
  int threads = 1;
  auto* attend = app.add_subcommand("attend", "The CPU backend's attend");
  attend->add_option("--heads", heads);
  attend->add_option("--length", length);
  attend->add_option("--tokens", tokens);
  attend->add_option("--threads", threads);
  std::string url;
  auto* layer = app.add_subcommand("layer", "A layer of a step through a tier");
  layer->add_option("--service", url)->required();
  CLI11_PARSE(app, argc, argv);
  try {
    if (attend->parsed()) tributary::bench::attend(heads, length, tokens, threads);
    if (layer->parsed()) tributary::bench::layer(url);
  } catch (const std::exception& error) {
    fmt::print(stderr, "python_peer: {}\n", error.what());
    return 1;
  }
  return 0;
}
