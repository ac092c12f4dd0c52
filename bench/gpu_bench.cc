// Decode attention, combine and append on a GPU, each as a share of what the device itself reaches
// in the same run: copies of its memory and a large product. Run by bench/gpu_check.sh.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/plan/merge_tree.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "kernels/cuda/device_peak.h"

namespace tributary::bench {
namespace {

constexpr int kRank = 512;
constexpr int kLatent = 576;
constexpr int kSteps = 11;  // timed runs of a case
constexpr int kLeafTokens = 2048;
constexpr std::int32_t kLayer = 0;

struct Peaks {
  double bytes_per_second = 0, flops = 0;
};

struct Case {
  int heads = 0, tokens = 1, batch = 0;
  std::int64_t length = 0;
  const char* goal = "";
};

std::size_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

/// Numbers between -1 and 1, the same each time.
std::vector<bf16> some_numbers(std::size_t count) {
  std::vector<bf16> values(count);
  std::uint32_t state = 12345;
  for (bf16& value : values) {
    state = state * 1664525U + 1013904223U;
    value = to_bf16(static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
  }
  return values;
}

std::unique_ptr<Buffer> numbers_on_device(Backend& backend, std::size_t count) {
  const std::vector<bf16> values = some_numbers(count);
  auto buffer = backend.allocate(count * sizeof(bf16));
  backend.upload(buffer->data(), std::as_bytes(std::span(values)));
  return buffer;
}

/// A cache whose pages hold numbers, all of them.
std::unique_ptr<Cache> filled_cache(Backend& backend, std::int32_t pages) {
  constexpr std::int32_t kPagesAtOnce = 1024;
  auto cache = backend.make_cache({.layers = 1,
                                   .pages = pages,
                                   .kv_lora_rank = kRank,
                                   .qk_rope_head_dim = kLatent - kRank,
                                   .row_dtype = DType::kBF16});
  const auto rows = numbers_on_device(backend, product(kPagesAtOnce * kPageTokens, kLatent));
  std::vector<AppendTask> tasks;
  for (std::int32_t begin = 0; begin < pages; begin += kPagesAtOnce) {
    tasks.clear();
    for (std::int32_t page = begin; page < std::min(begin + kPagesAtOnce, pages); ++page) {
      for (std::int32_t slot = 0; slot < kPageTokens; ++slot) {
        tasks.push_back({0, page, slot, std::int64_t{page - begin} * kPageTokens + slot});
      }
    }
    backend.append(*cache, {.tasks = tasks,
                            .item_layer = std::span(&kLayer, 1),
                            .source = rows->data(),
                            .source_stride_bytes = kLatent * sizeof(bf16)});
  }
  backend.synchronize(Deadline::after(std::chrono::seconds(60)));
  return cache;
}

/// The plan of one step of a case: all leaves of all sequences, and their merges.
struct Plan {
  std::vector<LeafTask> tasks;
  std::vector<std::int32_t> table;
  MergeSchedule merges;
  std::int64_t states = 0;
};

Plan make_plan(const Case& c, int leaf_tokens) {
  Plan plan;
  const std::int64_t pages = (c.length + kPageTokens - 1) / kPageTokens;
  const std::int64_t total = pages * c.batch;
  // Neighbours in a sequence lie apart in memory: a step that has no factor in common with most
  // numbers of pages.
  const std::int64_t step = 7919;
  for (std::int64_t i = 0; i < total; ++i) {
    plan.table.push_back(static_cast<std::int32_t>(total % step == 0 ? i : i * step % total));
  }
  plan.states = std::int64_t{c.batch} * c.tokens;
  for (std::int64_t s = 0; s < c.batch; ++s) {
    std::vector<NodeState> nodes;
    std::int32_t leaf = 0;
    for (std::int64_t begin = 0; begin < c.length; begin += leaf_tokens, ++leaf) {
      nodes.push_back({{0, leaf}, begin == 0 ? s * c.tokens : plan.states});
      if (begin > 0) plan.states += c.tokens;
      plan.tasks.push_back(
          {.tokens = c.tokens,
           .rows = static_cast<std::int32_t>(std::min<std::int64_t>(leaf_tokens, c.length - begin)),
           .first_page = static_cast<std::int32_t>(s * pages + begin / kPageTokens),
           .leaf_begin = begin,
           .query_position = c.length - c.tokens,
           .query = s * c.tokens,
           .state = nodes.back().state});
    }
    if (leaf > 1) plan.merges.add(nodes, tree_height(leaf), s * c.tokens, c.tokens);
  }
  return plan;
}

struct Inputs {
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Buffer> queries, states;
};

Inputs make_inputs(Backend& backend, const Case& c, const Plan& plan) {
  const StateShape shape{c.heads, kRank};
  return {.cache = filled_cache(backend, static_cast<std::int32_t>(plan.table.size())),
          .queries = numbers_on_device(
              backend, product(std::int64_t{c.batch} * c.tokens, std::int64_t{c.heads} * kLatent)),
          .states = backend.allocate(static_cast<std::size_t>(plan.states) * shape.record_bytes())};
}

void attend(Backend& backend, const Case& c, const Plan& plan, const Inputs& inputs) {
  backend.attend(*inputs.cache, {.tasks = plan.tasks,
                                 .block_table = plan.table,
                                 .item_layer = std::span(&kLayer, 1),
                                 .queries = inputs.queries->data(),
                                 .query_stride_bytes = product(c.heads, kLatent) * sizeof(bf16),
                                 .query_dtype = DType::kBF16,
                                 .heads = c.heads,
                                 .softmax_scale = 0.0722F,
                                 .states = inputs.states->as<float>()});
}

void combine(Backend& backend, const Case& c, const Plan& plan, const Inputs& inputs) {
  for (const auto& ops : plan.merges.levels()) {
    if (!ops.empty()) backend.merge({ops, {c.heads, kRank}, inputs.states->as<float>()});
  }
}

/// Attention of a step and its merges.
void decode(Backend& backend, const Case& c, const Plan& plan, const Inputs& inputs) {
  attend(backend, c, plan, inputs);
  combine(backend, c, plan, inputs);
}

/// What the device takes for `calls` as a CUDA graph, which is how a pool makes them.
double replay_seconds(Backend& backend, const std::function<void()>& calls) {
  const auto recording = backend.record(calls);
  return device_seconds(backend, kSteps, [&] { backend.replay(*recording); });
}

double decode_seconds(Backend& backend, const Case& c, int leaf_tokens) {
  const Plan plan = make_plan(c, leaf_tokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  return replay_seconds(backend, [&] { decode(backend, c, plan, inputs); });
}

void decode_case(Backend& backend, const Peaks& peaks, const Case& c) {
  const double seconds = decode_seconds(backend, c, kLeafTokens);
  const double rows = static_cast<double>(c.batch) * static_cast<double>(c.length);
  const double queries = static_cast<double>(c.batch) * c.tokens * c.heads;
  const double bytes = rows * kLatent * 2 + queries * (kLatent * 2 + (kRank + 1) * 4);
  const double flops = 2 * rows * c.tokens * c.heads * (kLatent + kRank);
  fmt::print(
      "decode   {:>3} heads  s_q {}  batch {:>3}  length {:>6}  {:>9.1f} us  {:>7.1f} GB/s "
      "{:>5.1f}% of copies  {:>6.1f} TFLOP/s {:>5.1f}% of the product  {}\n",
      c.heads, c.tokens, c.batch, c.length, seconds * 1e6, bytes / seconds * 1e-9,
      100 * bytes / seconds / peaks.bytes_per_second, flops / seconds * 1e-12,
      100 * flops / seconds / peaks.flops, c.goal);
  std::fflush(stdout);
}

/// What the canonical order costs beside one that splits anywhere, merges included, for leaves of
/// several sizes.
void merge_orders(Backend& canonical, int heads) {
  const Case c{.heads = heads, .tokens = 1, .batch = 128, .length = 4096};
  const auto fast = make_cuda_backend({.fast_merge_order = true});
  const double fast_seconds = decode_seconds(*fast, c, static_cast<int>(c.length));
  for (const int leaf_tokens : {256, 512, 1024, 2048, 4096}) {
    const double seconds = decode_seconds(canonical, c, leaf_tokens);
    fmt::print(
        "order    {:>3} heads  batch 128  length 4096  leaves of {:>4}  {:>9.1f} us  fast order "
        "{:>9.1f} us  {:.3f} x{}\n",
        heads, leaf_tokens, seconds * 1e6, fast_seconds * 1e6, seconds / fast_seconds,
        leaf_tokens == kLeafTokens ? "  (goal 1.05)" : "");
  }
}

/// A layer's attention as the host sees it, to its end: calls one by one, and as a graph that is
/// refilled with the plan each time.
void graph_case(Backend& backend, int batch) {
  constexpr int kRounds = 101;
  const Case c{.heads = 128, .tokens = 1, .batch = batch, .length = 8192};
  const Plan plan = make_plan(c, kLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  const auto calls = [&] { decode(backend, c, plan, inputs); };
  const auto recording = backend.record(calls);
  const auto median_us = [&](const std::function<void()>& enqueue) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      const auto begin = Deadline::Clock::now();
      enqueue();
      backend.synchronize(Deadline::after(std::chrono::seconds(60)));
      times.push_back(
          std::chrono::duration<double, std::micro>(Deadline::Clock::now() - begin).count());
    }
    std::ranges::nth_element(times, times.begin() + kRounds / 2);
    return times[kRounds / 2];
  };
  const double single = median_us(calls);
  const double graph = median_us([&] {
    if (!backend.refill(*recording, calls)) {
      fail(ErrorCode::kInternal, "a plan does not fit into its own recording");
    }
    backend.replay(*recording);
  });
  fmt::print(
      "graph    128 heads  batch {:>3}  length 8192  one by one {:>9.1f} us  graph {:>9.1f} us  "
      "{:.3f} x\n",
      batch, single, graph, graph / single);
}

void combine_case(Backend& backend, const Peaks& peaks, int heads) {
  const Case c{.heads = heads, .tokens = 1, .batch = 128, .length = 8192};
  const Plan plan = make_plan(c, kLeafTokens);
  const Inputs inputs = make_inputs(backend, c, plan);
  attend(backend, c, plan, inputs);
  const double seconds = replay_seconds(backend, [&] { combine(backend, c, plan, inputs); });
  double records = 0;
  for (const auto& ops : plan.merges.levels()) records += 3.0 * static_cast<double>(ops.size());
  const double bytes = records * static_cast<double>(StateShape{heads, kRank}.record_bytes());
  fmt::print(
      "combine  {:>3} heads  batch 128  4 states each  {:>9.1f} us  {:>5.1f}% of copies  "
      "(goal 95%)\n",
      heads, seconds * 1e6, 100 * bytes / seconds / peaks.bytes_per_second);
}

void append_case(Backend& backend, const Peaks& peaks) {
  constexpr int kRows = 128;
  const auto cache = filled_cache(backend, kRows);
  const auto rows = numbers_on_device(backend, product(kRows, kLatent));
  std::vector<AppendTask> tasks;
  for (std::int32_t i = 0; i < kRows; ++i) tasks.push_back({0, i, i % kPageTokens, i});
  const double seconds = replay_seconds(backend, [&] {
    backend.append(*cache, {.tasks = tasks,
                            .item_layer = std::span(&kLayer, 1),
                            .source = rows->data(),
                            .source_stride_bytes = kLatent * sizeof(bf16)});
  });
  const double bytes = 2.0 * kRows * kLatent * sizeof(bf16);
  fmt::print("append   128 rows  {:>9.1f} us; its bytes at the speed of copies take {:.2f} us\n",
             seconds * 1e6, bytes / peaks.bytes_per_second * 1e6);
}

void run(bool quick) {
  const CudaStatus status = cuda_status();
  const auto backend = make_cuda_backend({});
  fmt::print("{}\ndriver for CUDA {}, built with {}\n", backend->name(),
             cuda_version_text(status.driver_version), cuda_version_text(status.runtime_version));
  const Peaks peaks{device_copy_bandwidth(*backend), device_product_rate(*backend)};
  fmt::print("copies {:.1f} GB/s (read and written), bf16 product {:.1f} TFLOP/s\n\n",
             peaks.bytes_per_second * 1e-9, peaks.flops * 1e-12);
  std::vector<Case> cases{{16, 1, 128, 4096, "(goal 90% of copies)"},
                          {64, 1, 128, 4096, "(goal 85% of copies)"},
                          {128, 1, 128, 4096, "(goal 85% of the product)"},
                          {128, 2, 128, 4096, "(goal 85% of the product)"},
                          {128, 1, 1, 131072, "(goal 75% of the better)"}};
  if (!quick) {
    for (const std::int64_t length : {8192, 16384, 32768}) {
      for (const int tokens : {1, 2}) {
        cases.push_back({128, tokens, 128, length, "(goal 85% of the product)"});
      }
    }
  }
  for (const Case& c : cases) decode_case(*backend, peaks, c);
  for (const int heads : {16, 64, 128}) merge_orders(*backend, heads);
  for (const int heads : {16, 128}) combine_case(*backend, peaks, heads);
  append_case(*backend, peaks);
  for (const int batch : {1, 8, 32}) graph_case(*backend, batch);
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  CLI::App app("Decode attention on a GPU, as shares of what the device reaches in the same run.");
  bool quick = false;
  app.add_flag("--quick", quick, "Lengths up to 4096, and one long sequence, alone");
  CLI11_PARSE(app, argc, argv);
  try {
    tributary::bench::run(quick);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
