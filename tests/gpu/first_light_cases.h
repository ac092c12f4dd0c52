// Every kernel of attention and the merge against float64, for the first run on a device. It uses
// the kernels' own headers and the CUDA runtime and nothing else, so that it compiles anywhere. The
// including file launches the kernels (first_light.cu on a GPU, first_light_emulated.cc without
// one).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/visible_rows.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/few_rows_shape.h"
#include "tests/gpu/first_light_device.h"

namespace tributary::first_light {

/// How the kernels run, and how often: results of all runs must be equal in every bit.
struct Kernels {
  cudaError_t (*attend)(const cuda::AttendLaunch& launch, cudaStream_t stream);
  cudaError_t (*merge)(const cuda::MergeLaunch& launch, cudaStream_t stream);
  /// Describes `rows` rows of 512 + 64 bf16 to the copy engine, in 128 bytes aligned to 128.
  bool (*make_map)(const std::byte* cache, std::int64_t rows, void* map);
  int runs = 20;
};

struct Variant {
  const char* name;
  cuda::AttendKernel kernel;
  int unit_rows;
  std::vector<int> heads;
  bool selected = false;  // each token attends to rows of its own
};
inline std::vector<Variant> variants() {
  using cuda::AttendKernel;
  return {{"generic", AttendKernel::kGeneric, 4, {3}},
          {"few1", AttendKernel::kFewRows, 16, {9}},
          {"few2", AttendKernel::kFewRows, 32, {20}},
          {"few4", AttendKernel::kFewRows, 64, {40}},
          {"many1", AttendKernel::kManyRows, 64, {64, 33}},
          {"many2", AttendKernel::kManyRows, 128, {128, 33}},
          {"selected_generic", AttendKernel::kGeneric, 4, {3}, true},
          {"selected_few1", AttendKernel::kFewRows, 16, {9}, true},
          {"selected_few2", AttendKernel::kFewRows, 32, {20}, true},
          {"selected_few4", AttendKernel::kFewRows, 64, {40}, true},
          {"selected_many", AttendKernel::kManyRows, 64, {64, 33, 128}, true}};
}

/// One to four pages, full and partial; several tokens are masked differently, and their rows take
/// more than one unit.
struct Case {
  int tokens, rows;
};
constexpr Case kCases[] = {{1, 64}, {1, 128}, {1, 192}, {1, 256},
                           {1, 37}, {1, 130}, {2, 65},  {3, 200}};

constexpr int kRank = cuda::kLatentRank;
constexpr int kLatent = cuda::kLatentDim;

/// The errors found over all cases of a kernel.
struct Findings {
  int cases = 0, wrong_cases = 0, wrong_on_one_page = 0, wrong_on_full_pages = 0;
  bool lse = false, low = false, high = false, nan = false, differs = false, apart = false;
  void print() const {
    if (wrong_cases == 0) return;
    if (differs) std::printf("symptom: differs between runs\n");
    if (apart) std::printf("symptom: differs from a leaf of the selected rows alone\n");
    if (nan) std::printf("symptom: NaN in a result\n");
    if (lse) std::printf("symptom: lse wrong\n");
    if (!lse && low) std::printf("symptom: lse right and o wrong\n");
    if (!lse && !low && high) std::printf("symptom: only columns from 256\n");
    if (wrong_on_one_page == 0) std::printf("symptom: from page 2\n");
    if (wrong_on_full_pages == 0) std::printf("symptom: only partial pages\n");
  }
};

/// A batch of two leaves, in pages of a cache where everything else is NaN. Where a variant selects
/// rows, each token is a task with pages of its own; with `alone` they hold the selected rows and
/// nothing else, and the kernel attends to all of them.
class Problem {
 public:
  Problem(const Variant& variant, int heads, const Case& c, bool alone = false)
      : variant_(variant), heads_(heads), tokens_(c.tokens) {
    Numbers numbers(7);
    rows_.assign(std::size_t{kPages} * kPageTokens * kLatent, bf16{0x7fc0});
    const bool lists = variant.selected && !alone;
    if (lists) lists_.assign(records() * kMostSelected, -1);
    for (int t = 0; t < 2; ++t) {
      const int rows = t == 0 ? c.rows : c.rows / 2 + 1;
      std::vector<bf16> values(static_cast<std::size_t>(rows) * kLatent);
      for (bf16& value : values) value = to_bf16(numbers());
      LeafTask task;
      task.tokens = variant.selected ? 1 : c.tokens;
      task.leaf_begin = lists ? kSelectedBegin : 0;
      for (int token = 0; token < c.tokens; token += task.tokens) {
        task.rows = rows;
        task.query_position = task.leaf_begin + rows - c.tokens + token;
        task.query = std::int64_t{t} * c.tokens + token;
        task.state = task.query;
        if (!variant.selected) {
          add(task, values);
          continue;
        }
        std::vector<int> selected;
        for (int row = 0; row < visible_rows(task, 0); ++row) {
          if ((row + token) % 3 != 0) selected.push_back(row);
        }
        if (alone) {
          task.rows = static_cast<std::int32_t>(selected.size());
          add(task, rows_of(values, selected));
        } else {
          add(task, values);
          select(task, selected);
        }
      }
    }
    queries_.resize(static_cast<std::size_t>(2 * c.tokens * heads) * kLatent);
    for (bf16& value : queries_) value = to_bf16(numbers() * 0.5F);
    deal();
  }

  /// The results of one run; `states` is where it is computed.
  [[nodiscard]] std::vector<std::vector<float>> run(const Kernels& kernels, cudaStream_t stream) {
    const OnDevice<bf16> cache(rows_, stream);
    const OnDevice<bf16> queries(queries_, stream);
    const OnDevice<LeafTask> tasks(tasks_, stream);
    const OnDevice<std::int32_t> table(table_, stream);
    const OnDevice<std::int32_t> lists(lists_, stream);
    const OnDevice<std::int32_t> layer(std::vector<std::int32_t>{0}, stream);
    const OnDevice<std::int32_t> begins(begins_, stream);
    const OnDevice<cuda::WorkUnit> units(units_, stream);
    // Values that nobody writes stay NaN.
    const std::vector<float> fresh(records() * record_floats(),
                                   std::numeric_limits<float>::quiet_NaN());
    OnDevice<float> states(fresh, stream);
    alignas(128) std::byte map[128] = {};
    cuda::AttendLaunch launch;
    launch.tasks = tasks.get();
    launch.part_begin = begins.get();
    launch.units = units.get();
    launch.block_table = table.get();
    launch.item_layer = layer.get();
    launch.cache = reinterpret_cast<const std::byte*>(cache.get());
    launch.layout.layers = 1;
    launch.layout.pages = static_cast<int>(rows_.size() / kLatent / kPageTokens);
    launch.layout.kv_lora_rank = kRank;
    launch.layout.qk_rope_head_dim = kLatent - kRank;
    launch.queries = reinterpret_cast<const std::byte*>(queries.get());
    launch.query_stride_bytes = static_cast<std::size_t>(heads_) * kLatent * sizeof(bf16);
    launch.heads = heads_;
    launch.softmax_scale = kScale;
    launch.states = states.get();
    if (!lists_.empty()) {
      launch.selected = {lists.get(), kMostSelected * sizeof(std::int32_t), kMostSelected};
    }
    launch.unit_rows = variant_.unit_rows;
    launch.parts = static_cast<int>(begins_.size()) - 1;
    launch.kernel = variant_.kernel;
    launch.stages = cuda::few_rows_stages(launch.unit_rows / 16, std::size_t{227} << 10);
    if (variant_.kernel == cuda::AttendKernel::kManyRows) {
      if (!kernels.make_map(launch.cache, std::int64_t{launch.layout.pages} * kPageTokens, map)) {
        give_up("the driver makes no tensor map");
      }
      launch.cache_map = reinterpret_cast<const CUtensorMap_st*>(map);
    }
    std::vector<std::vector<float>> all;
    for (int i = 0; i < kernels.runs; ++i) {
      states.set(fresh, stream);
      check(kernels.attend(launch, stream), variant_.name);
      finish(stream, variant_.name);
      all.push_back(states.fetch(stream));
    }
    return all;
  }

  /// One row of float64: o, then lse.
  [[nodiscard]] std::vector<double> exact(const LeafTask& task, int token, int head) {
    const bf16* query =
        &queries_[(static_cast<std::size_t>(task.query + token) * static_cast<std::size_t>(heads_) +
                   static_cast<std::size_t>(head)) *
                  kLatent];
    const std::vector<int> attended = attended_rows(task, token);
    std::vector<double> scores;
    for (const int row : attended) {
      double score = 0;
      for (int i = 0; i < kLatent; ++i) {
        score += double{to_float(query[i])} * double{to_float(at(task, row)[i])};
      }
      scores.push_back(score * double{kScale});
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    std::vector<double> state(kRank + 1);
    for (std::size_t j = 0; j < scores.size(); ++j) {
      const double weight = std::exp(scores[j] - largest);
      sum += weight;
      for (std::size_t i = 0; i < kRank; ++i)
        state[i] += weight * double{to_float(at(task, attended[j])[i])};
    }
    for (std::size_t i = 0; i < kRank; ++i) state[i] /= sum;
    state[kRank] = largest + std::log(sum);
    return state;
  }

  /// Whether the states are right; says of the first wrong row what it is, and notes what it shows.
  bool judge(const std::vector<float>& states, Findings& findings) {
    // Weights are rounded to bf16 by the kernels for tensor cores; scores and sums are fp32.
    const double most = variant_.kernel == cuda::AttendKernel::kGeneric ? 2e-5 : 8e-3;
    bool right = true;
    for (const LeafTask& task : tasks_) {
      for (int token = 0; token < task.tokens; ++token) {
        const float* record =
            &states[static_cast<std::size_t>(task.state + token) * record_floats()];
        for (int head = 0; head < heads_; ++head) {
          const std::vector<double> expected = exact(task, token, head);
          const float* o = record + head * kRank;
          const float lse = record[heads_ * kRank + head];
          const double low = distance(o, expected, 0, kRank / 2);
          const double high = distance(o, expected, kRank / 2, kRank);
          const bool lse_wrong = !(std::abs(lse - expected[kRank]) < 1e-3);
          const bool wrong = lse_wrong || !(low < most) || !(high < most);
          if (wrong && right) {
            std::printf(
                "  WRONG token %d head %d of a leaf of %d rows: lse %.6f, expected %.6f; error of "
                "o "
                "%.2e (columns 0-255), %.2e (256-511), at most %.0e; o[0] %.5f, expected %.5f\n",
                token, head, task.rows, static_cast<double>(lse), expected[kRank], low, high, most,
                static_cast<double>(o[0]), expected[0]);
          }
          right = right && !wrong;
          findings.lse = findings.lse || lse_wrong;
          findings.low = findings.low || !(low < most);
          findings.high = findings.high || !(high < most);
          findings.nan = findings.nan || std::isnan(lse) || std::isnan(low) || std::isnan(high);
        }
      }
    }
    return right;
  }

 private:
  static constexpr float kScale = 0.0722F;
  static constexpr std::int32_t kPages = 32;
  static constexpr std::int32_t kMostSelected = 256;    // of a list
  static constexpr std::int32_t kSelectedBegin = 1000;  // of a leaf with lists

  /// Adds a task over a leaf of these rows, in pages of its own.
  void add(LeafTask& task, const std::vector<bf16>& values) {
    task.first_page = static_cast<std::int32_t>(table_.size());
    for (int page = 0; page * kPageTokens < task.rows; ++page) {
      table_.push_back((static_cast<std::int32_t>(table_.size()) * 7 + 3) % kPages);
    }
    for (int row = 0; row < task.rows; ++row) {
      std::copy_n(&values[static_cast<std::size_t>(row) * kLatent], kLatent, at(task, row));
    }
    tasks_.push_back(task);
  }
  static std::vector<bf16> rows_of(const std::vector<bf16>& values, const std::vector<int>& rows) {
    std::vector<bf16> some;
    for (const int row : rows) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row) * kLatent;
      some.insert(some.end(), begin, begin + kLatent);
    }
    return some;
  }
  /// Writes the list of the task's token, with a position before its leaf and one behind.
  void select(const LeafTask& task, const std::vector<int>& rows) {
    std::int32_t* list = &lists_[static_cast<std::size_t>(task.query) * kMostSelected];
    *list++ = kSelectedBegin - 1;
    for (const int row : rows) *list++ = kSelectedBegin + row;
    *list = kSelectedBegin + task.rows + 1;
  }
  [[nodiscard]] std::vector<int> attended_rows(const LeafTask& task, int token) const {
    const int seen = visible_rows(task, token);
    std::vector<int> rows;
    if (lists_.empty()) {
      for (int row = 0; row < seen; ++row) rows.push_back(row);
      return rows;
    }
    for (int i = 0; i < kMostSelected; ++i) {
      const int row = lists_[static_cast<std::size_t>(task.query) * kMostSelected +
                             static_cast<std::size_t>(i)] -
                      kSelectedBegin;
      if (row >= 0 && row < seen) rows.push_back(row);
    }
    return rows;
  }

  [[nodiscard]] std::size_t records() const { return 2 * static_cast<std::size_t>(tokens_); }
  [[nodiscard]] std::size_t record_floats() const {
    return static_cast<std::size_t>(heads_) * (kRank + 1);
  }
  [[nodiscard]] bf16* at(const LeafTask& task, int row) {
    const auto page = static_cast<std::size_t>(
        table_[static_cast<std::size_t>(task.first_page + row / kPageTokens)]);
    return &rows_[(page * kPageTokens + static_cast<std::size_t>(row % kPageTokens)) * kLatent];
  }
  /// Relative, of columns [begin, end).
  static double distance(const float* o, const std::vector<double>& expected, int begin, int end) {
    double error = 0;
    double norm = 0;
    for (int i = begin; i < end; ++i) {
      const double value = expected[static_cast<std::size_t>(i)];
      error += (double{o[i]} - value) * (double{o[i]} - value);
      norm += value * value;
    }
    return std::sqrt(error / norm);
  }
  /// Two units for the first part, none for the second, one for each of the others.
  void deal() {
    for (std::int32_t t = 0; t < static_cast<std::int32_t>(tasks_.size()); ++t) {
      for (int first = 0; first < tasks_[static_cast<std::size_t>(t)].tokens * heads_;
           first += variant_.unit_rows) {
        units_.push_back({t, first});
      }
    }
    begins_ = {0, 2, 2};
    for (std::size_t i = 2; i < units_.size(); ++i) {
      begins_.push_back(static_cast<std::int32_t>(i) + 1);
    }
  }

  Variant variant_;
  int heads_, tokens_;
  std::vector<bf16> rows_, queries_;
  std::vector<std::int32_t> lists_;  // [records][kMostSelected]; empty: all rows
  std::vector<LeafTask> tasks_;
  std::vector<std::int32_t> table_, begins_;
  std::vector<cuda::WorkUnit> units_;
};

/// All cases of a kernel. Returns 0 if all are right.
inline int ask_attend(const Kernels& kernels, const Variant& variant, cudaStream_t stream) {
  Findings findings;
  for (const int heads : variant.heads) {
    for (const Case& c : kCases) {
      Problem problem(variant, heads, c);
      const auto runs = problem.run(kernels, stream);
      ++findings.cases;
      bool right = problem.judge(runs.front(), findings);
      for (const auto& run : runs) {
        if (std::memcmp(run.data(), runs.front().data(), run.size() * sizeof(float)) != 0) {
          findings.differs = true;
          right = false;
        }
      }
      if (variant.selected) {
        Kernels once = kernels;
        once.runs = 1;
        const auto alone = Problem(variant, heads, c, true).run(once, stream).front();
        if (std::memcmp(alone.data(), runs.front().data(), alone.size() * sizeof(float)) != 0) {
          findings.apart = true;
          right = false;
        }
      }
      std::printf("%s %s, %d heads, %d tokens, %d rows\n", right ? "right" : "WRONG", variant.name,
                  heads, c.tokens, c.rows);
      static_cast<void>(std::fflush(stdout));
      if (right) continue;
      ++findings.wrong_cases;
      if (c.rows <= kPageTokens) ++findings.wrong_on_one_page;
      if (c.rows % kPageTokens == 0) ++findings.wrong_on_full_pages;
    }
  }
  findings.print();
  std::printf("%s: %d of %d cases wrong\n", variant.name, findings.wrong_cases, findings.cases);
  return findings.wrong_cases == 0 ? 0 : 1;
}

/// One block and two have the same bits.
inline int ask_many_bits(const Kernels& kernels, cudaStream_t stream) {
  int wrong = 0;
  const std::vector<Variant> all = variants();
  for (const Case& c : kCases) {
    Problem one(all[4], 128, c);
    Problem two(all[5], 128, c);
    Kernels once = kernels;
    once.runs = 1;
    if (one.run(once, stream) == two.run(once, stream)) continue;
    std::printf("WRONG: one block and two differ, %d tokens, %d rows\n", c.tokens, c.rows);
    ++wrong;
  }
  if (wrong > 0) std::printf("symptom: only with two blocks\n");
  std::printf("many_bits: %d of %zu cases differ\n", wrong, std::size(kCases));
  return wrong == 0 ? 0 : 1;
}

/// Merges of pairs, of one with the empty set, and of none.
inline int ask_merge(const Kernels& kernels, cudaStream_t stream) {
  constexpr int kHeads = 5;
  constexpr std::size_t kRecord = kHeads * (kRank + 1);
  constexpr double kMost = 2e-6;
  Numbers numbers(3);
  std::vector<float> before(6 * kRecord);
  for (float& value : before) value = numbers();
  const float nothing = -std::numeric_limits<float>::infinity();
  for (std::size_t head = 0; head < kHeads; ++head) {  // record 3 is the empty set
    before[3 * kRecord + kHeads * kRank + head] = nothing;
    for (std::size_t i = 0; i < kRank; ++i) before[3 * kRecord + head * kRank + i] = 0;
  }
  const std::vector<cuda::MergeTree> trees{{.dst = 4, .inputs = {0, 1}, .tokens = 1},
                                           {.dst = 5, .inputs = {2, 3}, .tokens = 1}};
  const OnDevice<cuda::MergeTree> plan(trees, stream);
  OnDevice<float> states(before, stream);
  cuda::MergeLaunch launch;
  launch.trees = plan.get();
  launch.count = static_cast<int>(trees.size());
  launch.heads = kHeads;
  launch.width = kRank;
  launch.states = states.get();
  std::vector<float> first;
  int wrong = 0;
  for (int run = 0; run < kernels.runs; ++run) {
    states.set(before, stream);
    check(kernels.merge(launch, stream), "merge");
    finish(stream, "merge");
    const std::vector<float> after = states.fetch(stream);
    if (run == 0) first = after;
    if (after != first) {
      ++wrong;
      std::printf("symptom: differs between runs\n");
    }
  }
  for (std::size_t head = 0; head < kHeads; ++head) {
    const double a = before[kHeads * kRank + head];
    const double b = before[kRecord + kHeads * kRank + head];
    const double largest = std::max(a, b);
    const double sum = std::exp(a - largest) + std::exp(b - largest);
    for (std::size_t i = 0; i < kRank; ++i) {
      const std::size_t at = head * kRank + i;
      const double expected = (std::exp(a - largest) * double{before[at]} +
                               std::exp(b - largest) * double{before[kRecord + at]}) /
                              sum;
      if (!(std::abs(double{first[4 * kRecord + at]} - expected) < kMost * 4)) ++wrong;
      if (first[5 * kRecord + at] != before[2 * kRecord + at]) ++wrong;
    }
    const double lse = largest + std::log(sum);
    if (!(std::abs(double{first[4 * kRecord + kHeads * kRank + head]} - lse) < kMost)) ++wrong;
  }
  std::printf("merge: %d values wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}

/// The question of this name, or -1.
inline int ask_kernel(const Kernels& kernels, const std::string& question) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  for (const Variant& variant : variants()) {
    if (question == variant.name) return ask_attend(kernels, variant, stream);
  }
  if (question == "many_bits") return ask_many_bits(kernels, stream);
  if (question == "merge") return ask_merge(kernels, stream);
  return -1;
}

}  // namespace tributary::first_light
