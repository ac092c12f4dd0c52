#include "bench/gpu_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <numeric>
#include <random>
#include <span>

namespace tributary::bench {
namespace {

/// Numbers between -1 and 1, the same in every run.
std::vector<bf16> some_numbers(std::size_t count) {
  std::vector<bf16> values(count);
  std::uint32_t state = 12345;
  for (bf16& value : values) {
    state = state * 1664525U + 1013904223U;
    value = to_bf16(static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
  }
  return values;
}

}  // namespace

std::size_t product(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b);
}

std::unique_ptr<Buffer> numbers_on_device(Backend& backend, std::size_t count) {
  const std::vector<bf16> values = some_numbers(count);
  auto buffer = backend.allocate(count * sizeof(bf16));
  backend.upload(buffer->data(), std::as_bytes(std::span(values)));
  return buffer;
}

std::unique_ptr<Cache> filled_cache(Backend& backend, std::int32_t pages, RowFormat row_format) {
  constexpr std::int32_t kPagesAtOnce = 1024;
  const RowLayout layout{row_format, kRank, kLatent - kRank};
  auto cache = backend.make_cache({.layers = 1,
                                   .pages = pages,
                                   .kv_lora_rank = kRank,
                                   .qk_rope_head_dim = kLatent - kRank,
                                   .row_format = row_format});
  const std::vector<bf16> numbers = some_numbers(product(kPagesAtOnce * kPageTokens, kLatent));
  std::vector<float> values(numbers.size());
  std::ranges::transform(numbers, values.begin(), [](bf16 number) { return to_float(number); });
  std::vector<std::byte> encoded(product(kPagesAtOnce * kPageTokens, 1) * layout.bytes());
  layout.encode(values, encoded.data());
  const auto rows = backend.allocate(encoded.size());
  backend.upload(rows->data(), encoded);
  std::vector<AppendTask> tasks;
  for (std::int32_t begin = 0; begin < pages; begin += kPagesAtOnce) {
    tasks.clear();
    for (std::int32_t page = begin; page < std::min(begin + kPagesAtOnce, pages); ++page) {
      for (std::int32_t slot = 0; slot < kPageTokens; ++slot) {
        tasks.push_back({0, page, slot, std::int64_t{page - begin} * kPageTokens + slot});
      }
    }
    backend.call(AppendArgs{.cache = cache.get(),
                            .tasks = tasks,
                            .item_layer = std::span(&kLayer, 1),
                            .source = rows->data(),
                            .source_stride_bytes = layout.bytes()});
  }
  backend.synchronize(Deadline::after(std::chrono::seconds(60)));
  return cache;
}

std::int64_t Case::length_of(std::int64_t sequence) const {
  if (!mixed) return length;
  // Steps of the golden ratio fill the interval evenly, whatever the batch.
  const double place = std::fmod(static_cast<double>(sequence) * 0.6180339887, 1.0);
  return std::max<std::int64_t>(tokens,
                                std::llround(static_cast<double>(length) * std::exp2(-7 * place)));
}

Plan make_plan(const Case& c, int leaf_tokens) {
  Plan plan;
  MergeSchedule merges;
  std::vector<std::int64_t> first_page{0};
  for (std::int64_t s = 0; s < c.batch; ++s) {
    first_page.push_back(first_page.back() + (c.length_of(s) + kPageTokens - 1) / kPageTokens);
  }
  const std::int64_t total = first_page.back();
  // Neighbouring pages of a sequence are far apart in memory: the stride has no factor in common
  // with most numbers of pages.
  const std::int64_t step = 7919;
  for (std::int64_t i = 0; i < total; ++i) {
    plan.table.push_back(static_cast<std::int32_t>(total % step == 0 ? i : i * step % total));
  }
  plan.states = std::int64_t{c.batch} * c.tokens;
  for (std::int64_t s = 0; s < c.batch; ++s) {
    const std::int64_t length = c.length_of(s);
    std::vector<NodeState> nodes;
    std::int32_t leaf = 0;
    for (std::int64_t begin = 0; begin < length; begin += leaf_tokens, ++leaf) {
      nodes.push_back({{0, leaf}, begin == 0 ? s * c.tokens : plan.states});
      if (begin > 0) plan.states += c.tokens;
      plan.tasks.push_back(
          {.tokens = c.tokens,
           .rows = static_cast<std::int32_t>(std::min<std::int64_t>(leaf_tokens, length - begin)),
           .first_page = static_cast<std::int32_t>(first_page[static_cast<std::size_t>(s)] +
                                                   begin / kPageTokens),
           .leaf_begin = begin,
           .query_position = length - c.tokens,
           .query = s * c.tokens,
           .state = nodes.back().state});
    }
    if (leaf > 1) merges.add(nodes, tree_height(leaf), s * c.tokens, c.tokens);
  }
  for (const std::vector<MergeOp>& ops : merges.levels()) {
    plan.merges.insert(plan.merges.end(), ops.begin(), ops.end());
  }
  return plan;
}

Inputs make_inputs(Backend& backend, const Case& c, const Plan& plan) {
  const StateShape shape{c.heads, kRank};
  return {.cache = filled_cache(backend, static_cast<std::int32_t>(plan.table.size()), c.rows),
          .queries = numbers_on_device(
              backend, product(std::int64_t{c.batch} * c.tokens, std::int64_t{c.heads} * kLatent)),
          .states = backend.allocate(static_cast<std::size_t>(plan.states) * shape.record_bytes())};
}

std::unique_ptr<Buffer> random_lists(Backend& backend, const Case& c, int most) {
  std::mt19937 random(7);
  std::vector<std::int32_t> lists;
  for (int s = 0; s < c.batch; ++s) {
    const auto length = static_cast<std::int32_t>(c.length_of(s));
    std::vector<std::int32_t> all(static_cast<std::size_t>(length));
    std::iota(all.begin(), all.end(), 0);
    for (int token = 0; token < c.tokens; ++token) {
      std::ranges::sample(all, std::back_inserter(lists), most, random);  // in order
    }
  }
  auto buffer = backend.allocate(lists.size() * sizeof(std::int32_t));
  backend.upload(buffer->data(), std::as_bytes(std::span(lists)));
  return buffer;
}

Call attend_call(const Case& c, const Plan& plan, const Inputs& inputs) {
  return AttendArgs{.cache = inputs.cache.get(),
                    .tasks = plan.tasks,
                    .block_table = plan.table,
                    .item_layer = std::span(&kLayer, 1),
                    .queries = inputs.queries->data(),
                    .query_stride_bytes = product(c.heads, kLatent) * sizeof(bf16),
                    .query_dtype = DType::kBF16,
                    .heads = c.heads,
                    .softmax_scale = 0.0722F,
                    .states = inputs.states->as<float>()};
}

std::vector<Call> combine_calls(const Case& c, const Plan& plan, const Inputs& inputs) {
  if (plan.merges.empty()) return {};
  return {MergeArgs{
      plan.merges, {c.heads, kRank}, inputs.states->as<float>(), plan.merges.back().level + 1}};
}

std::vector<Call> decode_calls(const Case& c, const Plan& plan, const Inputs& inputs) {
  std::vector<Call> calls = combine_calls(c, plan, inputs);
  calls.insert(calls.begin(), attend_call(c, plan, inputs));
  return calls;
}

}  // namespace tributary::bench
