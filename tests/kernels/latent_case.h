// A cache with leaves in it, for tests of attention: rows in random pages, NaN in every unused
// slot, and the exact partial states, evaluated only here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"

namespace tributary::test {

/// Half the distance from 1 to the next fp32 number: the most that rounding changes, relatively.
inline constexpr double kU = 0x1p-24;

/// Normal numbers with a standard deviation, one generator a case.
class Normal {
 public:
  explicit Normal(std::uint32_t seed) : random_(seed) {}
  [[nodiscard]] std::vector<float> floats(std::size_t count, double deviation = 1);
  [[nodiscard]] std::mt19937& random() noexcept { return random_; }

 private:
  std::mt19937 random_;
};

/// `values` as elements of `type` (kF32 or kBF16) or as rows, and what they are after that
/// rounding.
[[nodiscard]] std::vector<std::byte> to_bytes(const std::vector<float>& values, DType type);
[[nodiscard]] std::vector<std::byte> to_bytes(const std::vector<float>& values,
                                              const RowLayout& row);
[[nodiscard]] std::vector<double> rounded(std::vector<float> values, DType type);
[[nodiscard]] std::vector<double> rounded(std::vector<float> values, const RowLayout& row);

struct LatentShape {
  int kv_lora_rank = 0, qk_rope_head_dim = 0, heads = 0;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  int layers = 1;

  [[nodiscard]] int latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] RowLayout row() const { return {row_format, kv_lora_rank, qk_rope_head_dim}; }
  [[nodiscard]] StateShape state() const { return {heads, kv_lora_rank}; }
  [[nodiscard]] std::string text() const;
};

struct Leaf {
  std::int32_t first_page = 0;
  std::int32_t rows = 0;
  std::vector<double> values;  // [rows][latent_dim], as stored
};

/// The arithmetic of a backend's attention.
enum class Arithmetic {
  kFloat32,
  kFloat64,      // sums in float64 and rounds once: bounds do not grow with lengths
  kBf16Weights,  // fp32, but weights of values are rounded to bf16 where queries and rows are bf16
};

/// A partial state in float64, and the largest |score| that went into it.
struct ExactState {
  std::vector<double> o;
  double lse = 0;
  double largest_score = 0;
};

class LatentCase {
 public:
  /// Pages are handed out in random order, some of them never. The scale is latent_dim^-0.5 if none
  /// is given.
  LatentCase(Backend& backend, const LatentShape& shape, int pages, std::uint32_t seed,
             std::optional<float> softmax_scale = {});

  /// Stores `rows` ([rows][latent_dim], before rounding) as a new leaf of `layer`.
  Leaf add_leaf(const std::vector<float>& rows, int layer = 0);

  /// The positions that each query record attends to from now on, ascending; none: all it sees.
  void select(std::vector<std::vector<std::int32_t>> lists) { lists_ = std::move(lists); }

  /// Records of states of all tasks, with NaN where no task wrote. `queries` are [records][heads]
  /// [latent_dim] before rounding; `states` is the number of records. Records of queries have
  /// `padding` bytes between them. Every task is of item 0, whose layer is `layer`.
  [[nodiscard]] std::vector<float> attend(const std::vector<LeafTask>& tasks,
                                          const std::vector<float>& queries, std::size_t states,
                                          int layer = 0, std::size_t padding = 0);

  /// One head of one query over the first `visible` rows of the leaf.
  [[nodiscard]] ExactState exact(const Leaf& leaf, const std::vector<double>& queries,
                                 std::size_t record, int head, int visible) const;

  [[nodiscard]] const LatentShape& shape() const noexcept { return shape_; }
  [[nodiscard]] float softmax_scale() const noexcept { return scale_; }
  [[nodiscard]] const std::vector<std::int32_t>& block_table() const noexcept { return table_; }
  [[nodiscard]] Cache& cache() noexcept { return *cache_; }

 private:
  void append(const std::vector<AppendTask>& tasks, int layer, const std::vector<float>& rows);

  Backend& backend_;
  LatentShape shape_;
  float scale_;
  std::unique_ptr<Cache> cache_;
  std::vector<std::int32_t> free_pages_;
  std::vector<std::int32_t> table_;
  std::vector<std::vector<std::int32_t>> lists_;
};

/// Bounds on the distance between an fp32 evaluation of a leaf and the exact one.
///
/// Rounding errors of a sum of n terms, each at most kU relative and independent, add up to about
/// kU sqrt(n) of the largest partial sum. A score is a sum of latent_dim products, with partial
/// sums of the order of the largest score S: delta = kU sqrt(latent_dim) S, at least S >= 1. A
/// weight exp(score - max) is off by 2 delta (its own score and the maximum) and exp's own 4 kU; an
/// output sums `rows` of them in blocks. 4 times that for the tail of the distribution. lse takes
/// one delta, the sum's error, and its own rounding. An evaluation in float64 rounds only the
/// result. Weights rounded to bf16 are off by 2^-9 of themselves at most, independently: by 2^-9 /
/// sqrt(3) each on average, which is the relative error of their combination as well; again 4
/// times. lse sums them before.
struct AttendBounds {
  double relative;  // of the norm of o
  double lse;       // absolute
};
[[nodiscard]] AttendBounds attend_bounds(const LatentShape& shape, int rows, double largest_score,
                                         double lse, Arithmetic arithmetic);

/// Expects the state of (token record, head) to lie within attend_bounds of the exact one.
void expect_state(const LatentShape& shape, const std::vector<float>& states, std::size_t record,
                  int head, const ExactState& exact, int rows, Arithmetic arithmetic);

}  // namespace tributary::test
