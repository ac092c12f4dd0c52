#include "core/round/leaf_projector.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

void check_weight(std::string_view name, int layer, const Weight* weight, std::int64_t heads,
                  std::int64_t rows, std::int64_t cols) {
  if (weight == nullptr) {
    fail(ErrorCode::kInvalidArgument, "leaves are projected: {} of layer {} is missing", name,
         layer);
  }
  if (weight->batch() != heads || weight->rows() != rows || weight->cols() != cols) {
    fail(ErrorCode::kInvalidArgument, "{} of layer {} is {} x [{}, {}], expected {} x [{}, {}]",
         name, layer, weight->batch(), weight->rows(), weight->cols(), heads, rows, cols);
  }
}

}  // namespace

void check_leaf_weights(const AttentionShape& shape, int layers,
                        std::span<const LeafWeights> weights) {
  const int expected = shape.projects_leaves() ? layers : 0;
  if (std::cmp_not_equal(weights.size(), expected)) {
    fail(ErrorCode::kInvalidArgument,
         "weights to project with, of {} layers; expected of {}, as project_at is {}",
         weights.size(), expected, project_at_name(shape.project_at));
  }
  for (int layer = 0; layer < expected; ++layer) {
    const LeafWeights& of_layer = weights[size(layer)];
    check_weight("W_UK", layer, of_layer.w_uk, shape.heads, shape.kv_lora_rank,
                 shape.qk_nope_head_dim);
    check_weight("W_UV", layer, of_layer.w_uv, shape.heads, shape.v_head_dim, shape.kv_lora_rank);
  }
}

LeafProjector::LeafProjector(const AttentionShape& shape, Backend& backend,
                             std::vector<LeafWeights> weights)
    : shape_(shape),
      weights_(std::move(weights)),
      gathered_(backend),
      plain_(backend),
      absorbed_(backend),
      leaf_states_(backend) {}

std::size_t LeafProjector::plain_bytes() const noexcept {
  return size(shape_.heads) * size(shape_.query_width()) * sizeof(float);
}

std::size_t LeafProjector::absorbed_floats() const noexcept {
  return size(shape_.heads) * size(shape_.latent_dim());
}

std::size_t LeafProjector::absorbed_bytes(std::int64_t queries) const noexcept {
  const std::size_t rounded =
      shape_.query_dtype == DType::kF32 ? 0 : dtype_bytes(shape_.query_dtype);
  return size(queries) * absorbed_floats() * (sizeof(float) + rounded);
}

// A rank attends for at most all tokens of its plan, each once.
void LeafProjector::reserve(const RankPlan& plan) {
  const std::int64_t queries = plan.total_tokens();
  gathered_.reserve(size(queries) * shape_.token_record_bytes());
  plain_.reserve(size(queries) * plain_bytes());
  absorbed_.reserve(absorbed_bytes(queries));
  leaf_states_.reserve(size(plan.local_states) * shape_.leaf_state_shape().record_bytes());
}

bool LeafProjector::fits(const RankPlan& plan) const {
  const std::int64_t queries = plan.total_tokens();
  return size(queries) * shape_.token_record_bytes() <= gathered_.bytes() &&
         size(queries) * plain_bytes() <= plain_.bytes() &&
         absorbed_bytes(queries) <= absorbed_.bytes() &&
         size(plan.local_states) * shape_.leaf_state_shape().record_bytes() <= leaf_states_.bytes();
}

void LeafProjector::trim(Deadline::Clock::time_point now) {
  gathered_.trim(now);
  plain_.trim(now);
  absorbed_.trim(now);
  leaf_states_.trim(now);
}

void LeafProjector::order(const RankPlan& plan, Layers item_layer) {
  const auto layer_of = [&](std::int32_t task) {
    return item_layer[size(tasks_[size(task)].item)];
  };
  tasks_.assign(plan.tasks.begin(), plan.tasks.end());
  by_layer_.resize(tasks_.size());
  std::iota(by_layer_.begin(), by_layer_.end(), 0);
  // By the plan's order within a layer: tasks of one item stay neighbours. In place, unlike a
  // stable sort, which allocates.
  std::ranges::sort(by_layer_, [&](std::int32_t a, std::int32_t b) {
    return layer_of(a) != layer_of(b) ? layer_of(a) < layer_of(b) : a < b;
  });
  query_index_.clear();
  record_.resize(size(plan.local_states));
  groups_.clear();
  std::int64_t next_state = 0;
  std::int32_t last_item = -1;
  for (const std::int32_t index : by_layer_) {
    LeafTask& task = tasks_[size(index)];
    const std::int32_t layer = item_layer[size(task.item)];
    if (groups_.empty() || groups_.back().layer != layer) {
      groups_.push_back({.layer = layer,
                         .first_query = static_cast<std::int64_t>(query_index_.size()),
                         .first_state = next_state});
    }
    if (task.item != last_item) {
      last_item = task.item;
      for (std::int32_t t = 0; t < task.tokens; ++t) query_index_.push_back(task.query + t);
      groups_.back().queries += task.tokens;
    }
    task.query = static_cast<std::int64_t>(query_index_.size()) - task.tokens;
    const auto planned = record_.begin() + task.state;
    std::iota(planned, planned + task.tokens, next_state);
    task.state = next_state;
    next_state += task.tokens;
    groups_.back().states += task.tokens;
  }
}

void LeafProjector::add_absorb(const std::byte* tokens, std::vector<Call>& calls) {
  const std::int64_t heads = shape_.heads;
  const std::int64_t nope = shape_.qk_nope_head_dim;
  const std::int64_t width = shape_.query_width();
  const std::int64_t latent = shape_.latent_dim();
  const auto queries = static_cast<std::int64_t>(query_index_.size());
  const auto bytes = [](std::int64_t floats) { return size(floats) * sizeof(float); };
  calls.emplace_back(GatherArgs{.index = query_index_,
                                .src = tokens,
                                .dst = gathered_.data(),
                                .record_bytes = shape_.token_record_bytes()});
  calls.emplace_back(ConvertArgs{.rows = queries,
                                 .src = gathered_.data(),
                                 .src_row = plain_row(heads * width, shape_.query_dtype),
                                 .src_stride_bytes = shape_.token_record_bytes(),
                                 .dst = plain_.data(),
                                 .dst_row = plain_row(heads * width),
                                 .dst_stride_bytes = plain_bytes()});
  for (const Group& group : groups_) {
    calls.emplace_back(GemmArgs{.weight = weights(group.layer).w_uk,
                                .tokens = group.queries,
                                .x = plain_.as<float>() + group.first_query * heads * width,
                                .x_token_stride = heads * width,
                                .x_batch_stride = width,
                                .y = absorbed_.as<float>() + group.first_query * heads * latent,
                                .y_token_stride = heads * latent,
                                .y_batch_stride = latent});
  }
  if (shape_.qk_rope_head_dim > 0) {
    calls.emplace_back(ConvertArgs{.rows = queries * heads,
                                   .src = plain_.as<float>() + nope,
                                   .src_row = plain_row(shape_.qk_rope_head_dim),
                                   .src_stride_bytes = bytes(width),
                                   .dst = absorbed_.as<float>() + shape_.kv_lora_rank,
                                   .dst_row = plain_row(shape_.qk_rope_head_dim),
                                   .dst_stride_bytes = bytes(latent)});
  }
  if (shape_.query_dtype == DType::kF32) return;
  const RowLayout rounded = plain_row(heads * latent, shape_.query_dtype);
  calls.emplace_back(ConvertArgs{.rows = queries,
                                 .src = absorbed_.data(),
                                 .src_row = plain_row(heads * latent),
                                 .src_stride_bytes = bytes(heads * latent),
                                 .dst = absorbed_.data() + bytes(queries * heads * latent),
                                 .dst_row = rounded,
                                 .dst_stride_bytes = rounded.bytes()});
}

AttendArgs LeafProjector::attended(AttendArgs planned) const {
  const bool rounded = shape_.query_dtype != DType::kF32;
  const std::size_t plain = query_index_.size() * absorbed_floats() * sizeof(float);
  planned.tasks = std::span<const LeafTask>(tasks_);
  planned.queries = absorbed_.data() + (rounded ? plain : 0);
  planned.query_stride_bytes = absorbed_floats() * dtype_bytes(shape_.query_dtype);
  planned.states = leaf_states_.as<float>();
  return planned;
}

void LeafProjector::add_values(float* states, std::vector<Call>& calls) const {
  const std::int64_t heads = shape_.heads;
  const std::int64_t latent = shape_.kv_lora_rank;
  const std::int64_t value = shape_.v_head_dim;
  const StateShape from = shape_.leaf_state_shape();
  const StateShape to = shape_.state_shape();
  const auto from_record = static_cast<std::int64_t>(from.record_floats());
  const auto to_record = static_cast<std::int64_t>(to.record_floats());
  for (const Group& group : groups_) {
    calls.emplace_back(GemmArgs{.weight = weights(group.layer).w_uv,
                                .tokens = group.states,
                                .x = leaf_states_.as<float>() + group.first_state * from_record,
                                .x_token_stride = from_record,
                                .x_batch_stride = latent,
                                .y = states + group.first_state * to_record,
                                .y_token_stride = to_record,
                                .y_batch_stride = value});
  }
  calls.emplace_back(ConvertArgs{.rows = static_cast<std::int64_t>(record_.size()),
                                 .src = leaf_states_.as<float>() + heads * latent,
                                 .src_row = plain_row(heads),
                                 .src_stride_bytes = from.record_bytes(),
                                 .dst = states + heads * value,
                                 .dst_row = plain_row(heads),
                                 .dst_stride_bytes = to.record_bytes()});
}

}  // namespace tributary
