// The data of a replay's clients: rows and queries come from the generator, outputs go into the
// digest, and a sample of them is kept for recomputation in float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/model/attention_shape.h"
#include "core/workload/digest.h"
#include "core/workload/generator.h"
#include "core/workload/row_origins.h"

namespace tributary {

/// Two threads must not use it at once.
class SyntheticTokens {
 public:
  /// Recomputes a share `canary_rate` of (token, layer), chosen by hash, and at most `kMaxCanaries`
  /// of this object. `origins` outlive it; null: every row of a prompt is its request's own.
  SyntheticTokens(const AttentionShape& shape, std::uint64_t seed, double canary_rate,
                  const RowOrigins* origins = nullptr);

  [[nodiscard]] const AttentionShape& shape() const noexcept { return shape_; }

  /// Latent rows of positions begin .. begin + count - 1, in the cache's row type.
  void write_rows(std::int64_t tag, int layer, std::int64_t begin, std::int64_t count,
                  std::byte* rows);
  /// The query, the latent row and the selection of a new token:
  /// AttentionShape::token_record_bytes().
  void write_record(std::int64_t tag, int layer, std::int64_t position, std::byte* record);
  /// The attention output of a token, [heads, AttentionShape::state_shape().width].
  void take_output(std::int64_t tag, int layer, std::int64_t position,
                   std::span<const float> output);

  /// Outputs that were taken do not count: their step was aborted.
  void take_back(const Digest& outputs) { digest_.remove(outputs); }

  /// The digest of the outputs that were taken.
  [[nodiscard]] const Digest& digest() const noexcept { return digest_; }

  struct CanaryResult {
    std::int64_t checked = 0;
    double max_relative_error = 0;  // relative Frobenius, over the heads of one token
  };
  /// Recomputes the kept outputs; takes tens of milliseconds each.
  [[nodiscard]] CanaryResult check_canaries() const;

  static constexpr std::size_t kMaxCanaries = 64;

 private:
  struct Canary {
    std::int64_t tag, position;
    int layer;
    std::vector<float> output;  // [heads, kv_lora_rank]
  };
  void make_row(std::int64_t tag, int layer, std::int64_t position, std::span<float> row) const;
  [[nodiscard]] bool chosen(std::int64_t tag, std::int64_t position, int layer) const;

  AttentionShape shape_;
  std::uint64_t seed_;
  double canary_rate_;
  const RowOrigins* origins_;
  TokenGenerator generator_;
  Digest digest_;
  std::vector<Canary> canaries_;
  std::vector<float> values_;  // one query
  std::vector<float> row_;
  std::vector<std::int32_t> selected_;
};

}  // namespace tributary
