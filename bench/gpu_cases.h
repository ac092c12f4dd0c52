// The cases of gpu_bench: what a decode step of a batch computes, as calls, and its inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/interface/backend.h"
#include "core/plan/merge_tree.h"

namespace tributary::bench {

inline constexpr int kRank = 512;
inline constexpr int kLatent = 576;
inline constexpr int kLeafTokens = 2048;
inline constexpr std::int32_t kLayer = 0;

/// The bounds that a case must keep; 0: none.
struct Goal {
  double of_copies = 0, of_product = 0, of_better = 0;  // shares, in percent
};

struct Case {
  int heads = 0, tokens = 1, batch = 0;
  std::int64_t length = 0;  // of every sequence; mixed: of the longest
  bool mixed = false;       // lengths from 1/128 of the longest, their logarithms even
  Goal goal = {};
  RowFormat rows = RowFormat::kBF16;

  [[nodiscard]] std::int64_t length_of(std::int64_t sequence) const;
};

/// The plan of one step of a case: all leaves of all sequences, and their merges.
struct Plan {
  std::vector<LeafTask> tasks;
  std::vector<std::int32_t> table;
  std::vector<MergeOp> merges;  // by level
  std::int64_t states = 0;
};

/// All leaves in `leaf_tokens`; neighbouring pages of a sequence are far apart in memory.
[[nodiscard]] Plan make_plan(const Case& c, int leaf_tokens);

struct Inputs {
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Buffer> queries, states;
};

[[nodiscard]] Inputs make_inputs(Backend& backend, const Case& c, const Plan& plan);

/// Lists of `most` rows for every token of a case, in device memory: random ones of its length.
[[nodiscard]] std::unique_ptr<Buffer> random_lists(Backend& backend, const Case& c, int most);

// The calls name the plan and the inputs, which must outlive them.
[[nodiscard]] Call attend_call(const Case& c, const Plan& plan, const Inputs& inputs);
[[nodiscard]] std::vector<Call> combine_calls(const Case& c, const Plan& plan,
                                              const Inputs& inputs);
/// Attention and merges of a step.
[[nodiscard]] std::vector<Call> decode_calls(const Case& c, const Plan& plan, const Inputs& inputs);

[[nodiscard]] std::size_t product(std::int64_t a, std::int64_t b);
/// bf16 between -1 and 1, the same in every run.
[[nodiscard]] std::unique_ptr<Buffer> numbers_on_device(Backend& backend, std::size_t count);
/// A cache of one layer with numbers in all its pages.
[[nodiscard]] std::unique_ptr<Cache> filled_cache(Backend& backend, std::int32_t pages,
                                                  RowFormat rows = RowFormat::kBF16);

}  // namespace tributary::bench
