// Caches full of NaN, leaves in random pages, and attention in float64.
#include "tests/kernels/latent_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>

#include "core/base/elements.h"

namespace tributary::test {
std::vector<float> Normal::floats(std::size_t count, double deviation) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random_));
  return values;
}

std::vector<std::byte> to_bytes(const std::vector<float>& values, DType type) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(type));
  store_elements(type, values, bytes.data());
  return bytes;
}

std::vector<std::byte> to_bytes(const std::vector<float>& values, const RowLayout& row) {
  std::vector<std::byte> bytes(values.size() / row.values() * row.bytes());
  row.encode(values, bytes.data());
  return bytes;
}

std::vector<double> rounded(std::vector<float> values, DType type) {
  round_elements(type, values);
  return {values.begin(), values.end()};
}

std::vector<double> rounded(std::vector<float> values, const RowLayout& row) {
  row.round(values);
  return {values.begin(), values.end()};
}

std::string LatentShape::text() const {
  return fmt::format("{} + {}, {} heads, rows {}, queries {}", kv_lora_rank, qk_rope_head_dim,
                     heads, row_format_name(row_format), dtype_name(query_dtype));
}

LatentCase::LatentCase(Backend& backend, const LatentShape& shape, int pages, std::uint32_t seed,
                       std::optional<float> softmax_scale)
    : backend_(backend),
      shape_(shape),
      scale_(softmax_scale.value_or(1.0F / std::sqrt(static_cast<float>(shape.latent_dim())))),
      cache_(backend.make_cache({.layers = shape.layers,
                                 .pages = pages,
                                 .kv_lora_rank = shape.kv_lora_rank,
                                 .qk_rope_head_dim = shape.qk_rope_head_dim,
                                 .row_format = shape.row_format})),
      free_pages_(static_cast<std::size_t>(pages)) {
  std::iota(free_pages_.begin(), free_pages_.end(), 0);
  std::shuffle(free_pages_.begin(), free_pages_.end(), std::mt19937(seed));
  const std::vector<float> nothing(static_cast<std::size_t>(shape.latent_dim()),
                                   std::numeric_limits<float>::quiet_NaN());
  for (int layer = 0; layer < shape.layers; ++layer) {
    std::vector<AppendTask> tasks;
    for (int page = 0; page < pages; ++page) {
      for (int slot = 0; slot < kPageTokens; ++slot) tasks.push_back({0, page, slot, 0});
    }
    append(tasks, layer, nothing);
  }
}

void LatentCase::append(const std::vector<AppendTask>& tasks, int layer,
                        const std::vector<float>& rows) {
  const std::vector<std::byte> bytes = to_bytes(rows, shape_.row());
  const auto source = backend_.allocate(bytes.size());
  backend_.upload(source->data(), bytes);
  const std::array<std::int32_t, 1> item_layer{layer};
  backend_.call(AppendArgs{.cache = cache_.get(),
                           .tasks = tasks,
                           .item_layer = item_layer,
                           .source = source->data(),
                           .source_stride_bytes = cache_->layout().row_bytes()});
}

Leaf LatentCase::add_leaf(const std::vector<float>& rows, int layer) {
  const auto latent = static_cast<std::size_t>(shape_.latent_dim());
  Leaf leaf{.first_page = static_cast<std::int32_t>(table_.size()),
            .rows = static_cast<std::int32_t>(rows.size() / latent),
            .values = rounded(rows, shape_.row())};
  std::vector<AppendTask> tasks;
  for (std::int32_t row = 0; row < leaf.rows; ++row) {
    if (row % kPageTokens == 0) {
      table_.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    tasks.push_back({0, table_.back(), row % kPageTokens, row});
  }
  append(tasks, layer, rows);
  return leaf;
}

std::vector<float> LatentCase::attend(const std::vector<LeafTask>& tasks,
                                      const std::vector<float>& queries, std::size_t states,
                                      int layer, std::size_t padding) {
  const std::vector<std::byte> packed = to_bytes(queries, shape_.query_dtype);
  const std::size_t record = static_cast<std::size_t>(shape_.heads * shape_.latent_dim()) *
                             dtype_bytes(shape_.query_dtype);
  const std::size_t records = packed.size() / record;
  std::vector<std::byte> bytes(records * (record + padding), std::byte{0xff});
  for (std::size_t r = 0; r < records; ++r) {
    std::memcpy(bytes.data() + r * (record + padding), packed.data() + r * record, record);
  }
  const auto query_buffer = backend_.allocate(bytes.size());
  backend_.upload(query_buffer->data(), bytes);
  std::vector<float> result(states * shape_.state().record_floats(),
                            std::numeric_limits<float>::quiet_NaN());
  const auto state_buffer = backend_.allocate(result.size() * sizeof(float));
  backend_.upload(state_buffer->data(), std::as_bytes(std::span(result)));
  // Lists of one length, and one more entry between them.
  std::size_t most = 0;
  for (const auto& list : lists_) most = std::max(most, list.size());
  most = std::max<std::size_t>(most, 1);
  std::vector<std::int32_t> selected;
  for (std::vector<std::int32_t> list : lists_) {
    list.resize(most + 1, -1);
    selected.insert(selected.end(), list.begin(), list.end());
  }
  const auto selected_buffer = backend_.allocate(selected.size() * sizeof(std::int32_t) + 1);
  backend_.upload(selected_buffer->data(), std::as_bytes(std::span(selected)));
  const SelectedRows selection{.data = selected_buffer->as<std::int32_t>(),
                               .stride_bytes = (most + 1) * sizeof(std::int32_t),
                               .most = static_cast<std::int32_t>(most)};
  const std::array<std::int32_t, 1> item_layer{layer};
  backend_.call(AttendArgs{.cache = cache_.get(),
                           .tasks = tasks,
                           .block_table = table_,
                           .item_layer = item_layer,
                           .queries = query_buffer->data(),
                           .query_stride_bytes = record + padding,
                           .query_dtype = shape_.query_dtype,
                           .heads = shape_.heads,
                           .softmax_scale = scale_,
                           .states = state_buffer->as<float>(),
                           .selected = lists_.empty() ? SelectedRows{} : selection});
  backend_.download(std::as_writable_bytes(std::span(result)), state_buffer->data());
  return result;
}

ExactState LatentCase::exact(const Leaf& leaf, const std::vector<double>& queries,
                             std::size_t record, int head, int visible) const {
  const auto latent = static_cast<std::size_t>(shape_.latent_dim());
  const auto heads = static_cast<std::size_t>(shape_.heads);
  const double* query = &queries[(record * heads + static_cast<std::size_t>(head)) * latent];
  std::vector<double> scores;
  ExactState state{.o = std::vector<double>(static_cast<std::size_t>(shape_.kv_lora_rank)),
                   .lse = -std::numeric_limits<double>::infinity()};
  for (std::size_t row = 0; row < static_cast<std::size_t>(visible); ++row) {
    const double* key = &leaf.values[row * latent];
    scores.push_back(scale_ * std::inner_product(query, query + latent, key, 0.0));
    state.largest_score = std::max(state.largest_score, std::abs(scores.back()));
  }
  if (visible == 0) return state;
  const double max = std::ranges::max(scores);
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - max);
  for (std::size_t row = 0; row < scores.size(); ++row) {
    const double weight = std::exp(scores[row] - max) / sum;
    for (std::size_t c = 0; c < state.o.size(); ++c) {
      state.o[c] += weight * leaf.values[row * latent + c];
    }
  }
  state.lse = max + std::log(sum);
  return state;
}

AttendBounds attend_bounds(const LatentShape& shape, int rows, double largest_score, double lse,
                           Arithmetic arithmetic) {
  if (arithmetic == Arithmetic::kFloat64) {
    return {.relative = 2 * kU, .lse = 2 * kU * std::max(1.0, std::abs(lse))};
  }
  const double delta = kU * std::sqrt(shape.latent_dim()) * std::max(1.0, largest_score);
  const double sum = kU * std::sqrt(rows);
  const bool halves = arithmetic == Arithmetic::kBf16Weights &&
                      row_values(shape.row_format) == DType::kBF16 &&
                      shape.query_dtype == DType::kBF16;
  const double weight = halves ? 0x1p-9 / std::numbers::sqrt3 : 0;
  return {.relative = 4 * (2 * delta + 4 * kU + sum + weight),
          .lse = 4 * (delta + 4 * kU + sum + kU * std::abs(lse))};
}

void expect_state(const LatentShape& shape, const std::vector<float>& states, std::size_t record,
                  int head, const ExactState& exact, int rows, Arithmetic arithmetic) {
  const StateShape state = shape.state();
  const auto width = static_cast<std::size_t>(state.width);
  const auto h = static_cast<std::size_t>(head);
  const float* o = &states[record * state.record_floats() + h * width];
  const float lse =
      states[record * state.record_floats() + static_cast<std::size_t>(state.heads) * width + h];
  const std::string where =
      fmt::format("{}; record {}, head {}, {} rows", shape.text(), record, head, rows);
  if (rows == 0) {
    EXPECT_EQ(lse, -std::numeric_limits<float>::infinity()) << where;
    for (std::size_t c = 0; c < width; ++c) ASSERT_EQ(o[c], 0.0F) << where << ", element " << c;
    return;
  }
  double error = 0;
  double norm = 0;
  for (std::size_t c = 0; c < width; ++c) {
    ASSERT_TRUE(std::isfinite(o[c])) << where << ", element " << c << " is " << o[c];
    error += (o[c] - exact.o[c]) * (o[c] - exact.o[c]);
    norm += exact.o[c] * exact.o[c];
  }
  const AttendBounds bounds =
      attend_bounds(shape, rows, exact.largest_score, exact.lse, arithmetic);
  // Averages of many rows are smaller than the rows: errors are relative to what is averaged.
  const double scale = std::max(std::sqrt(norm), std::sqrt(static_cast<double>(width) / rows));
  EXPECT_LE(std::sqrt(error), bounds.relative * scale) << where;
  EXPECT_NEAR(lse, exact.lse, bounds.lse) << where;
}

}  // namespace tributary::test
