// Attention of one query token over latent rows in float64, the standard for every attention
// kernel, merge and exchange. It knows no backend and no page.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tributary {

struct ReferenceState {
  std::vector<double> o;    // [heads, kv_lora_rank], softmax-weighted mean of c_kv; 0 without rows
  std::vector<double> lse;  // [heads], natural log of the sum of exp(scaled score); -inf without
                            // rows
};

/// Takes the rows in as many pieces as is convenient, so that a long sequence need not lie in
/// memory. score = softmax_scale * (query . row) over all kv_lora_rank + rope_dim elements.
///
/// Rows are widened to double, never rounded. Speed: about 3 * 10^9 multiply-adds a second on one
/// core, so 64k rows of 576 for 16 heads take a third of a second.
class ReferenceAttention {
 public:
  /// `query`: [heads, kv_lora_rank + rope_dim], absorbed part first, unscaled; copied. Throws
  /// kInvalidArgument for sizes that do not match.
  ReferenceAttention(int heads, int kv_lora_rank, int rope_dim, double softmax_scale,
                     std::span<const double> query);

  /// Adds rows [n, kv_lora_rank + rope_dim]; throws kInvalidArgument unless whole rows.
  void add(std::span<const float> rows);
  void add(std::span<const double> rows);

  /// The state over all rows so far.
  [[nodiscard]] ReferenceState state() const;

 private:
  template <typename T>
  void add_rows(std::span<const T> rows);
  void add_block(std::size_t rows);

  std::size_t heads_, rank_, latent_dim_;
  double softmax_scale_;
  std::vector<double> query_;    // [heads, latent_dim]
  std::vector<double> maximum_;  // [heads], of the scaled scores so far
  std::vector<double> sum_;      // [heads], of exp(score - maximum)
  std::vector<double> o_;        // [heads, rank], not yet divided by the sum
  std::vector<double> block_;    // [block rows, latent_dim]
  std::vector<double> columns_;  // [latent_dim, block rows], the transpose
};

}  // namespace tributary
