#include "tests/kernels/cuda/emulation/attend_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include "core/base/elements.h"
#include "core/plan/merge_tree.h"
#include "kernels/cuda/attend/fast_order.h"
#include "kernels/cuda/attend/fused_order.h"
#include "kernels/cuda/attend/merge.h"
#include "tests/core/reference/reference_state.h"

namespace tributary::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kRowDeviation = 0.1;
constexpr std::int64_t kLeafBegin = 1024;
constexpr std::size_t kCacheAlignment = 128;

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

AttendCase::AttendCase(const AttendShape& shape, std::uint32_t seed)
    : shape_(shape),
      layout_{.layers = kLayers,
              .pages = kPages,
              .kv_lora_rank = shape.kv_lora_rank,
              .qk_rope_head_dim = shape.qk_rope_head_dim,
              .row_format = shape.row_format},
      scale_(static_cast<float>(1 / std::sqrt(192.0))),
      random_(seed),
      free_pages_(kPages),
      item_layer_{0, kLayers - 1},
      cache_memory_(layout_.row_bytes() * kPageTokens * kPages * kLayers + kCacheAlignment,
                    std::byte{0xff}) {
  std::iota(free_pages_.begin(), free_pages_.end(), 0);
  std::ranges::shuffle(free_pages_, random_);
  const auto address = reinterpret_cast<std::uintptr_t>(cache_memory_.data());
  cache_begin_ = (kCacheAlignment - address % kCacheAlignment) % kCacheAlignment;
}

std::vector<float> AttendCase::normal(std::size_t count, double deviation) {
  std::normal_distribution<double> distribution(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(distribution(random_));
  return values;
}

std::size_t AttendCase::add_leaf(int rows) {
  std::vector<float> values = normal(size(rows) * size(shape_.latent_dim()), kRowDeviation);
  layout_.row().round(values);
  return add_rows(std::move(values));
}

std::size_t AttendCase::add_leaf(const std::vector<double>& scores, std::int64_t query) {
  const std::size_t latent = size(shape_.latent_dim());
  const std::span direction = std::span(queries_[size(query)]).first(latent);
  double norm = 0;
  for (const float x : direction) norm += static_cast<double>(x) * x;
  std::vector<float> values = normal(scores.size() * latent, kRowDeviation);
  layout_.row().round(values);
  for (std::size_t row = 0; row < scores.size(); ++row) {
    double score = 0;  // as it is
    for (std::size_t c = 0; c < latent; ++c) score += direction[c] * values[row * latent + c];
    const double move = (scores[row] / static_cast<double>(scale_) - score) / norm;
    for (std::size_t c = 0; c < latent; ++c) {
      float& value = values[row * latent + c];
      value += static_cast<float>(move * direction[c]);
    }
  }
  layout_.row().round(values);
  return add_rows(std::move(values));
}

std::size_t AttendCase::copy_leaf(std::size_t leaf) {
  return add_rows(leaves_[leaf].values);
}

std::size_t AttendCase::add_leaf_of(std::size_t leaf, const std::vector<int>& rows) {
  return add_rows(values_of(leaf, rows));
}

std::vector<float> AttendCase::values_of(std::size_t leaf, const std::vector<int>& rows) const {
  std::vector<float> values;
  for (const int row : rows) {
    const auto begin =
        leaves_[leaf].values.begin() + static_cast<std::ptrdiff_t>(row) * shape_.latent_dim();
    values.insert(values.end(), begin, begin + shape_.latent_dim());
  }
  return values;
}

void AttendCase::select(std::int64_t query, std::vector<int> rows) {
  lists_[query] = std::move(rows);
}

std::size_t AttendCase::add_rows(std::vector<float> values) {
  // An entry between leaves that nobody may read.
  block_table_.push_back(std::numeric_limits<std::int32_t>::min());
  leaves_.push_back({static_cast<std::int32_t>(block_table_.size()), std::move(values)});
  const std::size_t rows = leaves_.back().values.size() / size(shape_.latent_dim());
  for (std::size_t row = 0; row < rows; row += kPageTokens) {
    block_table_.push_back(free_pages_.back());
    free_pages_.pop_back();
  }
  store(leaves_.back());
  return leaves_.size() - 1;
}

void AttendCase::store(const LeafRows& leaf) {
  const std::size_t latent = size(shape_.latent_dim());
  for (std::size_t row = 0; row * latent < leaf.values.size(); ++row) {
    const std::int32_t page = block_table_[size(leaf.first_page) + row / kPageTokens];
    // The layer of item 1.
    const std::size_t slot = size((kLayers - 1) * kPages + page) * kPageTokens + row % kPageTokens;
    const auto begin = leaf.values.begin() + static_cast<std::ptrdiff_t>(row * latent);
    layout_.row().encode({begin, begin + static_cast<std::ptrdiff_t>(latent)},
                         cache_memory_.data() + cache_begin_ + slot * row_bytes());
  }
}

void AttendCase::poison(std::size_t leaf, int first, int last) {
  std::vector<float>& values = leaves_[leaf].values;
  const auto at = [&](int row) {
    return values.begin() + static_cast<std::ptrdiff_t>(row) * shape_.latent_dim();
  };
  std::fill(at(first), at(last), std::numeric_limits<float>::infinity());
  store(leaves_[leaf]);
}

std::int64_t AttendCase::add_queries(int tokens, double score_deviation) {
  const double deviation = score_deviation / (static_cast<double>(scale_) *
                                              std::sqrt(shape_.latent_dim()) * kRowDeviation);
  const auto first = static_cast<std::int64_t>(queries_.size());
  for (int token = 0; token < tokens; ++token) {
    queries_.push_back(normal(size(shape_.heads) * size(shape_.latent_dim()), deviation));
    round_elements(shape_.query_dtype, queries_.back());
  }
  return first;
}

std::size_t AttendCase::add_task(std::size_t leaf, std::int64_t query, int tokens,
                                 std::int64_t position) {
  const LeafRows& rows = leaves_[leaf];
  tasks_.push_back(
      {.item = 1,
       .tokens = tokens,
       .rows = static_cast<std::int32_t>(rows.values.size() / size(shape_.latent_dim())),
       .first_page = rows.first_page,
       .leaf_begin = kLeafBegin,
       .query_position = kLeafBegin + position,
       .query = query,
       .state = state_records_});
  task_leaf_.push_back(leaf);
  state_records_ += tokens + 1;  // and an unused one between tasks
  return tasks_.size() - 1;
}

cuda::AttendLaunch AttendCase::prepare() {
  const std::size_t query_bytes =
      size(shape_.heads) * size(shape_.latent_dim()) * dtype_bytes(shape_.query_dtype);
  const std::size_t stride = query_bytes + shape_.query_padding;
  query_memory_.assign(stride * queries_.size(), std::byte{0xff});
  for (std::size_t i = 0; i < queries_.size(); ++i) {
    store_elements(shape_.query_dtype, queries_[i], query_memory_.data() + i * stride);
  }
  states_.assign(size(state_records_) * state_floats(), kNaN);
  std::size_t most = 0;
  for (const auto& [query, rows] : lists_) most = std::max(most, rows.size());
  const std::size_t list = most + 1;  // -1 behind the longest, too
  list_memory_.assign(list * queries_.size(), -1);
  for (const auto& [query, rows] : lists_) {
    std::ranges::transform(rows,
                           list_memory_.begin() + static_cast<std::ptrdiff_t>(size(query) * list),
                           [](int row) { return static_cast<std::int32_t>(kLeafBegin) + row; });
  }
  SelectedRows selected;
  if (!lists_.empty()) {
    selected = {list_memory_.data(), list * sizeof(std::int32_t), static_cast<std::int32_t>(most)};
  }
  return {.tasks = tasks_.data(),
          .block_table = block_table_.data(),
          .item_layer = item_layer_.data(),
          .cache = cache_memory_.data() + cache_begin_,
          .layout = layout_,
          .queries = query_memory_.data(),
          .query_stride_bytes = stride,
          .query_dtype = shape_.query_dtype,
          .heads = shape_.heads,
          .softmax_scale = scale_,
          .states = states_.data(),
          .selected = selected};
}

simt::Counters AttendCase::run(const std::function<void(const cuda::AttendLaunch&)>& kernel,
                               int unit_rows, int parts, unsigned threads, std::size_t shared_bytes,
                               unsigned cluster_blocks) {
  cuda::AttendSchedule schedule = cuda::schedule_attend(tasks_, shape_.heads, unit_rows, parts);
  if (keep_order_) std::ranges::sort(schedule.units, {}, &cuda::WorkUnit::task);
  cuda::AttendLaunch launch = prepare();
  launch.part_begin = schedule.part_begin.data();
  launch.units = schedule.units.data();
  launch.unit_rows = unit_rows;
  launch.parts = parts;
  return simt::run({.blocks = static_cast<unsigned>(parts) * cluster_blocks,
                    .threads = threads,
                    .shared_bytes = shared_bytes,
                    .cluster_blocks = cluster_blocks,
                    .seed = static_cast<std::uint32_t>(random_())},
                   [&] { kernel(launch); });
}

void AttendCase::run_fast(const std::function<void(const cuda::AttendLaunch&)>& kernel,
                          int unit_rows, int parts, unsigned threads, std::size_t shared_bytes) {
  const cuda::FastOrder order = cuda::fast_order(tasks_, shape_.heads, unit_rows, parts);
  std::vector<float> scratch(size(order.scratch_records) * state_floats(), kNaN);
  cuda::AttendLaunch launch = prepare();
  launch.tasks = order.tasks.data();
  launch.part_begin = order.schedule.part_begin.data();
  launch.units = order.schedule.units.data();
  launch.unit_rows = unit_rows;
  launch.parts = parts;
  launch.scratch = scratch.data();
  simt::run({.blocks = static_cast<unsigned>(parts),
             .threads = threads,
             .shared_bytes = shared_bytes,
             .seed = static_cast<std::uint32_t>(random_())},
            [&] { kernel(launch); });
  for (const auto& trees : cuda::merge_trees(order.merges, order.merge_levels)) {
    merge(trees, scratch.data());
  }
}

void AttendCase::merge(const std::vector<cuda::MergeTree>& trees, float* scratch) {
  const cuda::MergeLaunch launch{.trees = trees.data(),
                                 .heads = shape_.heads,
                                 .width = shape_.kv_lora_rank,
                                 .states = states_.data(),
                                 .scratch = scratch};
  const auto heads = static_cast<unsigned>(shape_.heads);
  simt::run({.blocks = static_cast<unsigned>(trees.size()),
             .blocks_y = (heads + cuda::kMergeWarps - 1) / cuda::kMergeWarps,
             .threads = cuda::kMergeWarps * simt::kWarpLanes},
            [&] { cuda::merge_block(launch); });
}

void AttendCase::run_merged(const std::function<void(const cuda::AttendLaunch&)>& kernel, int level,
                            int unit_rows, int parts, unsigned threads, std::size_t shared_bytes,
                            unsigned cluster_blocks) {
  std::vector<NodeState> nodes;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    nodes.push_back({{0, static_cast<std::int32_t>(t)}, tasks_[t].state});
  }
  const int height = tree_height(static_cast<std::int64_t>(tasks_.size()));
  MergeSchedule schedule;
  schedule.add(nodes, height, tasks_.front().state, tasks_.front().tokens);
  std::vector<MergeOp> ops;
  for (const auto& of_level : schedule.levels()) {
    ops.insert(ops.end(), of_level.begin(), of_level.end());
  }
  cuda::AttendLaunch launch = prepare();
  const MergeArgs merges{.ops = ops,
                         .shape = {shape_.heads, shape_.kv_lora_rank},
                         .states = states_.data(),
                         .levels = height};
  const cuda::FusedOrder order = cuda::fused_order_below(
      level, {.tasks = tasks_, .heads = shape_.heads}, merges, unit_rows, parts);
  launch.part_begin = order.schedule.part_begin.data();
  launch.units = order.schedule.units.data();
  launch.unit_rows = unit_rows;
  launch.parts = parts;
  launch.task_trees = order.task_trees.data();
  launch.trees = order.trees.data();
  simt::run({.blocks = static_cast<unsigned>(parts) * cluster_blocks,
             .threads = threads,
             .shared_bytes = shared_bytes,
             .cluster_blocks = cluster_blocks,
             .seed = static_cast<std::uint32_t>(random_())},
            [&] { kernel(launch); });
  for (const auto& trees : order.rest) merge(trees, nullptr);
}

std::size_t AttendCase::state_floats() const {
  return StateShape{shape_.heads, shape_.kv_lora_rank}.record_floats();
}

State AttendCase::state(std::size_t task, int token) const {
  const std::size_t floats = state_floats();
  const auto begin =
      states_.begin() + static_cast<std::ptrdiff_t>(size(tasks_[task].state + token) * floats);
  return {begin, begin + static_cast<std::ptrdiff_t>(floats)};
}

ReferenceState AttendCase::exact(std::size_t task, int token) const {
  const LeafTask& of = tasks_[task];
  const std::int64_t bound = of.query_position + token + 1 - of.leaf_begin;
  const std::size_t seen = size(std::clamp<std::int64_t>(bound, 0, of.rows));
  const std::vector<float>& query = queries_[size(of.query + token)];
  const std::vector<float>& all = leaves_[task_leaf_[task]].values;
  std::vector<float> rows(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(seen * size(shape_.latent_dim())));
  if (const auto list = lists_.find(of.query); list != lists_.end()) {
    std::vector<int> attended;
    std::ranges::copy_if(list->second, std::back_inserter(attended),
                         [seen](int row) { return row >= 0 && size(row) < seen; });
    rows = values_of(task_leaf_[task], attended);
  }
  return reference_attend(shape_.heads, shape_.kv_lora_rank, shape_.qk_rope_head_dim,
                          static_cast<double>(scale_),
                          std::vector<double>(query.begin(), query.end()), rows);
}

std::vector<std::vector<int>> selections_of(int rows) {
  std::mt19937 random(91);
  std::vector<int> all(size(rows));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<int>> lists{all, {}, {0}, {rows - 1}, {-1000, -1, rows, 2 * rows}};
  lists.emplace_back();
  for (int row = 17; row < rows; row += kPageTokens) lists.back().push_back(row);
  for (const std::ptrdiff_t count : {31, 33, 63, 64, 65, 129}) {
    lists.emplace_back(std::vector<int>{-5});
    std::ranges::sample(all, std::back_inserter(lists.back()), count, random);
    lists.back().push_back(rows + 3);
  }
  return lists;
}

void AttendCase::expect_near_exact() const {
  const std::size_t floats = state_floats();
  std::vector<bool> written(size(state_records_));
  const std::size_t width = size(shape_.kv_lora_rank);
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    for (int token = 0; token < tasks_[t].tokens; ++token) {
      written[size(tasks_[t].state + token)] = true;
      const State got = state(t, token);
      const ReferenceState expected = exact(t, token);
      for (std::size_t head = 0; head < size(shape_.heads); ++head) {
        SCOPED_TRACE(testing::Message()
                     << "task " << t << " of " << tasks_[t].rows << " rows and " << tasks_[t].tokens
                     << " tokens, token " << token << ", head " << head);
        const double lse = expected.lse[head];
        const float got_lse = got[size(shape_.heads) * width + head];
        const bool empty = lse == -std::numeric_limits<double>::infinity();
        if (empty) {
          ASSERT_EQ(got_lse, lse);
        } else {
          ASSERT_TRUE(std::isfinite(got_lse));
          ASSERT_LE(std::abs(got_lse - lse), 8.01 / 65536 * std::abs(lse)) << "lse " << lse;
        }
        double dot = 0, got_norm = 0, norm = 0;
        for (std::size_t c = 0; c < width; ++c) {
          const double a = got[head * width + c];
          const double b = expected.o[head * width + c];
          ASSERT_TRUE(std::isfinite(a)) << "column " << c;
          ASSERT_TRUE(!empty || a == 0) << "column " << c << ": " << a;
          const double error = std::abs(a - b);
          ASSERT_TRUE(error < 8e-4 || error < 2.01 / 128 * std::abs(b))
              << "column " << c << ": " << a << ", expected " << b;
          dot += a * b;
          got_norm += a * a;
          norm += b * b;
        }
        ASSERT_TRUE(empty || 1 - dot / std::sqrt(got_norm * norm) < 5e-6);
      }
    }
  }
  for (std::size_t record = 0; record < written.size(); ++record) {
    if (written[record]) continue;
    for (std::size_t i = 0; i < floats; ++i) {
      ASSERT_TRUE(std::isnan(states_[record * floats + i])) << "record " << record << ": written";
    }
  }
}

}  // namespace tributary::test
