// Fills the cache by repeating one page of random rows.
#include "deploy/app/bench/decode_case.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>
#include <random>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/cache/leaves.h"

namespace tributary::bench {
namespace {

std::vector<bf16> random_halves(std::size_t count, std::uint32_t seed) {
  // Drawing a normal number per element would dominate the set-up of the long cases, so they come
  // from a table.
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::array<bf16, 4096> table;
  for (bf16& value : table) value = to_bf16(normal(random));
  std::vector<bf16> out(count);
  for (bf16& value : out) value = table[random() % table.size()];
  return out;
}

}  // namespace

int layers_from_memory(std::int64_t rows, const RowLayout& row) {
  constexpr std::int64_t kBytes = std::int64_t{128} << 20;
  const std::int64_t layer_bytes = rows * static_cast<std::int64_t>(row.bytes());
  return static_cast<int>(std::clamp<std::int64_t>(ceil_div(kBytes, layer_bytes), 1, 256));
}

DecodeCase::DecodeCase(Backend& backend, int heads, int tokens, std::span<const int> lengths,
                       int leaf_tokens, RowFormat format, int layers)
    : backend_(backend), item_layer_(lengths.size()), shape_{heads, kRank}, layers_(layers) {
  const RowLayout row{format, kRank, kRope};
  for (std::size_t item = 0; item < lengths.size(); ++item) {
    const int length = lengths[item];
    const auto first_page = static_cast<std::int32_t>(block_table_.size());
    block_table_.resize(block_table_.size() +
                        static_cast<std::size_t>(ceil_div(length, kPageTokens)));
    const auto first_task = tasks_.size();
    for_each_leaf(0, length, leaf_tokens, [&](const LeafPart& part) {
      tasks_.push_back(
          {.item = static_cast<std::int32_t>(item),
           .tokens = tokens,
           .rows = static_cast<std::int32_t>(part.rows()),
           .first_page = first_page + static_cast<std::int32_t>(part.begin / kPageTokens),
           .leaf_begin = part.begin,
           .query_position = length - tokens,
           .query = static_cast<std::int64_t>(item) * tokens,
           .state = static_cast<std::int64_t>(tasks_.size()) * tokens});
    });
    const auto leaves = static_cast<std::int64_t>(tasks_.size() - first_task);
    std::size_t level = 0;
    for (std::int64_t step = 1; step < leaves; step *= 2, ++level) {
      if (merges_.size() == level) merges_.emplace_back();
      for (std::int64_t left = 0; left + step < leaves; left += 2 * step) {
        const std::int64_t at = tasks_[first_task].state + left * tokens;
        merges_[level].push_back(
            {.dst = at, .left = at, .right = at + step * tokens, .tokens = tokens});
      }
    }
    gflop_ += 2.0 * (2 * kRank + kRope) * heads * tokens * length / 1e9;
    gigabytes_ += static_cast<double>(length) * static_cast<double>(row.bytes()) / 1e9;
  }
  const auto pages = static_cast<std::int32_t>(block_table_.size());
  std::iota(block_table_.begin(), block_table_.end(), 0);
  std::shuffle(block_table_.begin(), block_table_.end(), std::mt19937(2));
  cache_ = backend.make_cache({layers, pages, kRank, kRope, format});
  std::vector<float> values;
  for (const bf16 half : random_halves(std::size_t{kPageTokens} * kLatent, 3)) {
    values.push_back(to_float(half));
  }
  std::vector<std::byte> rows(kPageTokens * row.bytes());
  row.encode(values, rows.data());
  for (int layer = 0; layer < layers; ++layer) {
    for (std::int32_t page = 0; page < pages; ++page) {
      backend.store_rows(*cache_, layer, page, 0, rows);
    }
  }
  const auto row_floats = static_cast<std::size_t>(heads) * kLatent;
  const std::vector<bf16> queries =
      random_halves(lengths.size() * static_cast<std::size_t>(tokens) * row_floats, 1);
  queries_ = backend.allocate(queries.size() * sizeof(bf16));
  backend.upload(queries_->data(), std::as_bytes(std::span(queries)));
  states_ =
      backend.allocate(tasks_.size() * static_cast<std::size_t>(tokens) * shape_.record_bytes());
  args_ = {.cache = cache_.get(),
           .tasks = tasks_,
           .block_table = block_table_,
           .item_layer = item_layer_,
           .queries = queries_->data(),
           .query_stride_bytes = row_floats * sizeof(bf16),
           .query_dtype = DType::kBF16,
           .heads = heads,
           .softmax_scale = 0.0417F,
           .states = states_->as<float>()};
}

void DecodeCase::attend() {
  const std::int32_t next = (item_layer_.front() + 1) % layers_;
  std::ranges::fill(item_layer_, next);
  backend_.call(args_);
}

double DecodeCase::merged_bytes() const noexcept {
  double records = 0;
  for (const std::vector<MergeOp>& level : merges_) {
    for (const MergeOp& op : level) records += op.tokens;
  }
  return records * static_cast<double>(shape_.record_bytes());
}

void DecodeCase::merge() {
  for (const std::vector<MergeOp>& level : merges_) {
    backend_.call(MergeArgs{.ops = level, .shape = shape_, .states = states_->as<float>()});
  }
}

}  // namespace tributary::bench
