// Decode attention, combine and append on a GPU, each as a share of the peaks that the device
// reaches in the same run: copies of its memory and a large product. bench/gpu_check.sh runs it, a
// part a process, and collects the lines that begin with `goal`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "bench/gpu_cases.h"
#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/device_peak.h"

namespace tributary::bench {
namespace {

constexpr int kSteps = 11;  // timed runs per case

struct Peaks {
  double bytes_per_second = 0;
  double flops = 0;  // 0: not measured, there is no cuBLASLt
};

/// One line that bench/gpu_check.sh collects. `least`: the figure is to be at least the limit.
void print_goal(const std::string& what, double figure, const char* unit, double limit,
                bool least) {
  const bool reached = least ? figure >= limit : figure <= limit;
  fmt::print("goal {:<44} {:>8.2f} {:<14} {} {:>7.2f}  {}\n", what, figure, unit,
             least ? "at least" : "at most ", limit, reached ? "reached" : "NOT reached");
  std::fflush(stdout);
}

/// Device time of `calls` as a CUDA graph, which is how a pool runs them.
double replay_seconds(Backend& backend, std::span<const Call> calls) {
  const auto recording = backend.record(calls);
  return device_seconds(backend, kSteps, [&] { backend.replay(*recording); });
}

double decode_seconds(Backend& backend, const Case& c, int leaf_tokens) {
  const Plan plan = make_plan(c, leaf_tokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  return replay_seconds(backend, decode_calls(c, plan, inputs));
}

void decode_case(Backend& backend, const Peaks& peaks, const Case& c) {
  const double seconds = decode_seconds(backend, c, kLeafTokens);
  const double rows = static_cast<double>(c.batch) * static_cast<double>(c.length);
  const double queries = static_cast<double>(c.batch) * c.tokens * c.heads;
  const double bytes = rows * kLatent * 2 + queries * (kLatent * 2 + (kRank + 1) * 4);
  const double flops = 2 * rows * c.tokens * c.heads * (kLatent + kRank);
  const double of_copies = 100 * bytes / seconds / peaks.bytes_per_second;
  const double of_product = peaks.flops == 0 ? 0 : 100 * flops / seconds / peaks.flops;
  fmt::print(
      "table decode   {:>3} heads  s_q {}  batch {:>3}  length {:>6}  {:>9.1f} us  {:>7.1f} GB/s "
      "{:>5.1f}% of copies  {:>6.1f} TFLOP/s {:>5.1f}% of the product\n",
      c.heads, c.tokens, c.batch, c.length, seconds * 1e6, bytes / seconds * 1e-9, of_copies,
      flops / seconds * 1e-12, of_product);
  const std::string what = fmt::format("attention, {} heads, s_q {}, batch {}, {} tokens", c.heads,
                                       c.tokens, c.batch, c.length);
  const Goal& goal = c.goal;
  if (goal.of_copies > 0) print_goal(what, of_copies, "% of copies", goal.of_copies, true);
  if (peaks.flops == 0) return;
  if (goal.of_product > 0) print_goal(what, of_product, "% of product", goal.of_product, true);
  if (goal.of_better > 0) {
    print_goal(what, std::max(of_copies, of_product), "% of better", goal.of_better, true);
  }
}

/// Attention to random rows of long sequences, in leaves as large as sparse pools have, beside the
/// same number of rows in sequence.
void selected_case(Backend& backend, const Peaks& peaks, int heads, int batch, RowFormat rows) {
  constexpr int kMost = 2048;
  constexpr int kSparseLeafTokens = 32768;
  const Case c{.heads = heads, .tokens = 1, .batch = batch, .length = 131072, .rows = rows};
  const Plan plan = make_plan(c, kSparseLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  const auto lists = random_lists(backend, c, kMost);
  std::vector<Call> calls = decode_calls(c, plan, inputs);
  std::get<AttendArgs>(calls.front()).selected = {.data = lists->as<std::int32_t>(),
                                                  .stride_bytes = kMost * sizeof(std::int32_t),
                                                  .most = kMost};
  const double seconds = replay_seconds(backend, calls);
  const double in_sequence = decode_seconds(
      backend, {.heads = heads, .tokens = 1, .batch = batch, .length = kMost, .rows = rows},
      kLeafTokens);
  const double bytes = static_cast<double>(batch) * kMost *
                       static_cast<double>(RowLayout{rows, kRank, kLatent - kRank}.bytes());
  fmt::print(
      "table selected {:>3} heads  batch {:>3}  {} random rows of {}, {:<10}  {:>9.1f} us  "
      "{:>7.1f} GB/s {:>5.1f}% of copies  in sequence {:>9.1f} us  {:.3f} x\n",
      heads, batch, kMost, c.length, row_format_name(rows), seconds * 1e6, bytes / seconds * 1e-9,
      100 * bytes / seconds / peaks.bytes_per_second, in_sequence * 1e6, seconds / in_sequence);
}

/// Rows of codes beside rows of bf16, in one run.
void rows_case(Backend& backend, const Peaks& peaks, Case c) {
  const double plain = decode_seconds(backend, c, kLeafTokens);
  for (const std::string_view name : {"fp8_ds_mla", "fp8", "fp8@0.3"}) {
    c.rows = *find_row_format(name);
    const double seconds = decode_seconds(backend, c, kLeafTokens);
    const auto row_bytes = static_cast<double>(RowLayout{c.rows, kRank, kLatent - kRank}.bytes());
    const double bytes =
        static_cast<double>(c.batch) *
        (static_cast<double>(c.length) * row_bytes + c.heads * (kLatent * 2.0 + (kRank + 1) * 4.0));
    fmt::print(
        "table rows     {:>3} heads  batch {:>3}  length {:>6}  {:<10}  {:>9.1f} us  {:>5.1f}% of "
        "copies  bf16 {:>9.1f} us  {:.3f} x\n",
        c.heads, c.batch, c.length, name, seconds * 1e6,
        100 * bytes / seconds / peaks.bytes_per_second, plain * 1e6, seconds / plain);
  }
}

/// The cost of the canonical order compared with one that splits anywhere, merges included.
void merge_order(Backend& canonical, Backend& fast, const Case& c, std::span<const int> leaves,
                 double goal) {
  const double fast_seconds = decode_seconds(fast, c, static_cast<int>(c.length));
  const std::string what = fmt::format("{:>3} heads, batch {:>3}, {} {}", c.heads, c.batch,
                                       c.length, c.mixed ? "and fewer tokens" : "tokens");
  for (const int leaf_tokens : leaves) {
    const double seconds = decode_seconds(canonical, c, leaf_tokens);
    fmt::print(
        "table order    {}  leaves of {:>4}  {:>9.1f} us  fast order {:>9.1f} us  {:.3f} x\n", what,
        leaf_tokens, seconds * 1e6, fast_seconds * 1e6, seconds / fast_seconds);
    if (leaf_tokens == kLeafTokens) {
      print_goal("canonical order, " + what, seconds / fast_seconds, "x fast", goal, false);
    }
  }
}

/// For a batch that divides what units are dealt to, for several sizes of leaves; and for batches
/// that do not, and mixed lengths, which leave the last units to a part of the device.
void merge_orders(Backend& canonical, CudaOptions options, int heads) {
  options.fast_merge_order = true;
  const auto fast = make_cuda_backend(options);
  const auto order = [&](int batch, std::span<const int> leaves, double goal) {
    merge_order(canonical, *fast, {.heads = heads, .tokens = 1, .batch = batch, .length = 4096},
                leaves, goal);
  };
  order(128, std::array{256, 512, 1024, 2048, 4096}, 1.05);
  const std::array leaves{1024, 2048};
  order(67, leaves, 1.25);
  order(100, leaves, 1.25);
  merge_order(canonical, *fast,
              {.heads = heads, .tokens = 1, .batch = 64, .length = 32768, .mixed = true}, leaves,
              1.25);
}

/// Host time of a layer's attention until it is complete: as single calls, and as a graph that is
/// refilled with the plan each time, as a pool's rounds are. What the device does not work of that
/// it waits for the host.
void graph_case(Backend& backend, int batch) {
  constexpr int kRounds = 101;
  const Case c{.heads = 128, .tokens = 1, .batch = batch, .length = 8192};
  const Plan plan = make_plan(c, kLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  const std::vector<Call> calls = decode_calls(c, plan, inputs);
  const auto recording = backend.record(calls);
  const auto median_us = [&](const std::function<void()>& enqueue) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      enqueue();
      backend.synchronize(Deadline::after(std::chrono::seconds(60)));
      times.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count());
    }
    std::ranges::nth_element(times, times.begin() + kRounds / 2);
    return times[kRounds / 2];
  };
  const double single = median_us([&] { backend.call(calls); });
  const double graph = median_us([&] {
    if (!backend.refill(*recording, calls)) {
      fail(ErrorCode::kInternal, "a plan does not fit into its own recording");
    }
    backend.replay(*recording);
  });
  const double device = 1e6 * device_seconds(backend, kSteps, [&] { backend.replay(*recording); });
  fmt::print(
      "table graph    128 heads  batch {:>3}  length 8192  one by one {:>9.1f} us  graph {:>9.1f} "
      "us  {:.3f} x  the device idles {:.1f}% of it\n",
      batch, single, graph, graph / single, 100 * std::max(0.0, 1 - device / graph));
}

void combine_case(Backend& backend, const Peaks& peaks, int heads) {
  const Case c{.heads = heads, .tokens = 1, .batch = 128, .length = 8192};
  const Plan plan = make_plan(c, kLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  backend.call(attend_call(c, plan, inputs));
  const double seconds = replay_seconds(backend, combine_calls(c, plan, inputs));
  // Every state is read once, and a sequence's is written.
  const double records = static_cast<double>(plan.states + c.batch);
  const double bytes = records * static_cast<double>(StateShape{heads, kRank}.record_bytes());
  const double of_copies = 100 * bytes / seconds / peaks.bytes_per_second;
  fmt::print(
      "table combine  {:>3} heads  batch 128  4 states each  {:>9.1f} us  {:>5.1f}% of copies\n",
      heads, seconds * 1e6, of_copies);
  print_goal(fmt::format("merge, {} heads, batch 128, 4 states each", heads), of_copies,
             "% of copies", 95, true);
}

void append_case(Backend& backend, const Peaks& peaks) {
  constexpr int kRows = 128;
  const auto cache = filled_cache(backend, kRows);
  const auto rows = numbers_on_device(backend, product(kRows, kLatent));
  std::vector<AppendTask> tasks;
  for (std::int32_t i = 0; i < kRows; ++i) tasks.push_back({0, i, i % kPageTokens, i});
  const Call append = AppendArgs{.cache = cache.get(),
                                 .tasks = tasks,
                                 .item_layer = std::span(&kLayer, 1),
                                 .source = rows->data(),
                                 .source_stride_bytes = kLatent * sizeof(bf16)};
  const double seconds = replay_seconds(backend, std::span(&append, 1));
  const double bytes = 2.0 * kRows * kLatent * sizeof(bf16);
  fmt::print(
      "table append   128 rows  {:>9.1f} us; its bytes at the speed of copies take {:.2f} us\n",
      seconds * 1e6, bytes / peaks.bytes_per_second * 1e6);
}

/// The part is one of kParts, or empty: all.
struct Options {
  std::string part;
  bool quick = false;
  int heads = 0;  // of the parts that take one number of heads; 0: all
  CudaOptions backend;
};
const std::vector<std::string> kParts{"attend", "rows",   "selected", "orders",
                                      "merge",  "append", "graphs",   "once"};

Peaks measure_peaks(Backend& backend) {
  Peaks peaks{.bytes_per_second = device_copy_bandwidth(backend)};
  const Status product = status_of([&] { peaks.flops = device_product_rate(backend); });
  if (!product.ok()) fmt::print("no bf16 product: {}\n", product.message());
  fmt::print("table copies {:.1f} GB/s (read and written), bf16 product {:.1f} TFLOP/s\n",
             peaks.bytes_per_second * 1e-9, peaks.flops * 1e-12);
  return peaks;
}

std::vector<Case> attend_cases(bool quick) {
  std::vector<Case> cases{{16, 1, 128, 4096, false, {.of_copies = 90}},
                          {32, 1, 128, 4096, false, {.of_copies = 90}},
                          {64, 1, 128, 4096, false, {.of_copies = 85}},
                          {128, 1, 128, 4096, false, {.of_product = 85}},
                          {128, 2, 128, 4096, false, {.of_product = 85}},
                          {128, 1, 1, 131072, false, {.of_better = 75}}};
  if (!quick) {
    for (const std::int64_t length : {8192, 16384, 32768}) {
      for (const int tokens : {1, 2}) {
        cases.push_back({128, tokens, 128, length, false, {.of_product = 85}});
      }
    }
  }
  return cases;
}

/// One launch of attention, for a profiler.
void attend_once(Backend& backend, int heads) {
  const Case c{.heads = heads == 0 ? 128 : heads, .tokens = 1, .batch = 128, .length = 4096};
  const Plan plan = make_plan(c, kLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  backend.call(attend_call(c, plan, inputs));
  backend.synchronize(Deadline::after(std::chrono::seconds(60)));
}

void run(const Options& options) {
  const CudaStatus status = cuda_status();
  const auto backend = make_cuda_backend(options.backend);
  fmt::print("{}\ndriver for CUDA {}, built with {}\n", backend->name(),
             cuda_version_text(status.driver_version), cuda_version_text(status.runtime_version));
  const auto wanted = [&](const char* part) {
    return options.part.empty() || options.part == part;
  };
  const auto takes = [&](int heads) { return options.heads == 0 || options.heads == heads; };
  if (options.part == "once") return attend_once(*backend, options.heads);
  const bool shares = wanted("attend") || wanted("rows") || wanted("selected") || wanted("merge") ||
                      wanted("append");
  const Peaks peaks = shares ? measure_peaks(*backend) : Peaks{};
  if (wanted("attend")) {
    for (const Case& c : attend_cases(options.quick)) {
      if (takes(c.heads)) decode_case(*backend, peaks, c);
    }
  }
  if (wanted("rows")) {
    for (const int heads : {1, 16, 32, 64, 128}) {
      if (takes(heads)) rows_case(*backend, peaks, {.heads = heads, .batch = 128, .length = 4096});
    }
    if (takes(128)) rows_case(*backend, peaks, {.heads = 128, .batch = 1, .length = 131072});
  }
  if (wanted("selected")) {
    for (const int heads : {16, 64, 128}) {
      if (!takes(heads)) continue;
      for (const int batch : {1, 32}) {
        for (const RowFormat rows : {RowFormat::kBF16, RowFormat::kFp8DsMla}) {
          selected_case(*backend, peaks, heads, batch, rows);
        }
      }
    }
  }
  if (wanted("merge")) {
    for (const int heads : {16, 128}) {
      if (takes(heads)) combine_case(*backend, peaks, heads);
    }
  }
  if (wanted("orders")) {
    for (const int heads : {16, 64, 128}) {
      if (takes(heads)) merge_orders(*backend, options.backend, heads);
    }
  }
  if (wanted("append")) append_case(*backend, peaks);
  if (wanted("graphs")) {
    for (const int batch : {1, 8, 32}) graph_case(*backend, batch);
  }
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  CLI::App app("Decode attention on a GPU, as shares of what the device reaches in the same run.");
  tributary::bench::Options options;
  std::string kernel = "auto";
  app.add_flag("--quick", options.quick, "Lengths up to 4096, and one long sequence, alone");
  app.add_option("--part", options.part, "This part alone; `once` is one launch, for a profiler")
      ->check(CLI::IsMember(tributary::bench::kParts));
  app.add_option("--heads", options.heads, "Cases of this number of heads alone");
  app.add_option("--attend-kernel", kernel, "auto|generic|few|many1|many2")
      ->envname("TRIBUTARY_ATTEND_KERNEL");
  CLI11_PARSE(app, argc, argv);
  try {
    options.backend.attend_kernel = tributary::parse_attend_choice(kernel);
    tributary::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
