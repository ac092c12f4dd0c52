// The shape that a pool serves. Its workers, its clients and the control plane must agree on it.
// The one list of its fields is here: JSON, messages between processes and comparisons go by it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "core/base/dtype.h"
#include "core/model/attention_shape.h"

namespace tributary {

struct MlaShape;

/// Equality is exact.
struct PoolShape : AttentionShape {
  int qk_nope_head_dim = 0;  // 0: the pool has neither W_UK nor W_UV
  int v_head_dim = 0;        // likewise
  int hidden_size = 0;       // 0: the pool has no other weights of a model
  int layers = 0;
  int leaf_tokens = 0;
  float latent_norm_eps = 0;  // 0: the pool has no other weights of a model

  /// The number of values in a head's query before W_UK.
  [[nodiscard]] int unabsorbed_width() const noexcept {
    return qk_nope_head_dim + qk_rope_head_dim;
  }
  friend bool operator==(const PoolShape&, const PoolShape&) = default;
  /// The fields in messages: calls archive(field) for each.
  static void fields(auto& archive, auto& shape);
};

/// A field and its name, in JSON and in messages to people.
template <typename Shape, typename Value>
struct ShapeField {
  std::string_view name;
  Value Shape::*member;
  int least = 0;  // value of a dimension
};
// Clang needs this guide to deduce an aggregate's arguments.
template <typename Shape, typename Value>
ShapeField(std::string_view, Value Shape::*, int = 0) -> ShapeField<Shape, Value>;

/// The fields in the order of the wire.
inline constexpr std::tuple kPoolShapeFields{
    ShapeField{"heads", &PoolShape::heads, 1},
    ShapeField{"kv_lora_rank", &PoolShape::kv_lora_rank, 1},
    ShapeField{"qk_rope_head_dim", &PoolShape::qk_rope_head_dim},
    ShapeField{"v_head_dim", &PoolShape::v_head_dim},
    ShapeField{"hidden_size", &PoolShape::hidden_size},
    ShapeField{"layers", &PoolShape::layers, 1},
    ShapeField{"leaf_tokens", &PoolShape::leaf_tokens, 1},
    ShapeField{"row_dtype", &PoolShape::row_format},  // the first name in files
    ShapeField{"query_dtype", &PoolShape::query_dtype},
    ShapeField{"softmax_scale", &PoolShape::softmax_scale},
    ShapeField{"qk_nope_head_dim", &PoolShape::qk_nope_head_dim},
    ShapeField{"topk", &PoolShape::topk},
    ShapeField{"latent_norm_eps", &PoolShape::latent_norm_eps}};

/// visit(field) for each field of the list, in its order.
template <typename... Fields, typename Visit>
constexpr void for_each_field(const std::tuple<Fields...>& list, Visit visit) {
  std::apply([&](const Fields&... fields) { (visit(fields), ...); }, list);
}

void PoolShape::fields(auto& archive, auto& shape) {
  for_each_field(kPoolShapeFields, [&](const auto& field) { archive(shape.*field.member); });
}

/// The first field in which two shapes differ, with both values as text.
struct ShapeDifference {
  std::string_view field;
  std::string first, second;
};
[[nodiscard]] std::optional<ShapeDifference> find_difference(const PoolShape& first,
                                                             const PoolShape& second);

/// The first field in which a pool is not of the model: its rows, layers, selection or softmax
/// scale. Scales agree up to a relative 1e-5, which six digits in a file have.
[[nodiscard]] std::optional<ShapeDifference> find_difference(const MlaShape& model,
                                                             const PoolShape& pool);

/// The tokens of a pool's leaf unless it is told. Where tokens select rows a leaf holds more:
/// partial states take longer than the few rows of a small leaf (figures: bench/README.md).
[[nodiscard]] constexpr int default_leaf_tokens(int topk) noexcept {
  return topk > 0 ? 32'768 : 2048;
}

/// The attention of a model's layers. The softmax scale is the model's, as fp32. `topk`: instead of
/// the model's; -1 for that one.
[[nodiscard]] AttentionShape attention_shape(const MlaShape& model, RowFormat row_format,
                                             DType query_dtype, int topk = -1);

}  // namespace tributary
