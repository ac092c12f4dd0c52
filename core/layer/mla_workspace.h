// Device memory for the intermediate values of an MLA layer, of a size fixed at construction, so
// that no operation allocates and long inputs are processed in chunks.
#pragma once

#include <cstdint>
#include <memory>

#include "core/interface/backend.h"
#include "core/model/model_shape.h"

namespace tributary {

/// Keys per step of prefill attention. The grid of key chunks starts at position 0 and does not
/// depend on the call, so neither do the bits. 128 rows make `kv_b_proj` a product with enough rows
/// to run at the speed of a matrix product, while the decompressed keys and values of a chunk stay
/// at 16.8 MB for 128 heads of 128 + 128.
inline constexpr int kPrefillKeyChunk = 128;

struct MlaWorkspaceOptions {
  /// Tokens processed at once, 1 .. 65536; longer inputs take several rounds of the same work.
  int max_tokens = 128;
  /// False leaves out the buffers (and, in layers built on this workspace, the weight) that only
  /// prefill_attention uses.
  bool prefill = true;
};

/// Shared by the layers of one backend: their operations run in order, so one set of buffers
/// serves all of them. Sizes per token, in floats, with H heads, N + R per query head, V per value
/// head, C + R per latent row:
///   down          q_lora_rank (or H (N + R) without a low-rank query) + C + R
///   query         H (N + R)
///   value         H V
///   prefill only  2 H (V + 1) for states, and kPrefillKeyChunk (H (N + V) + R) in all
class MlaWorkspace {
 public:
  /// Throws kInvalidArgument for options out of bounds, kPoolFull when memory is short.
  MlaWorkspace(Backend& backend, const ModelShape& shape, const MlaWorkspaceOptions& options);

  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Backend& backend() const noexcept { return *backend_; }
  [[nodiscard]] std::int64_t max_tokens() const noexcept { return options_.max_tokens; }
  [[nodiscard]] bool prefill() const noexcept { return options_.prefill; }
  /// Device bytes held.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  /// Rows of the first product that belong to the query.
  [[nodiscard]] std::int64_t down_query_rows() const noexcept;
  [[nodiscard]] std::int64_t down_rows() const noexcept;

  [[nodiscard]] float* down() const noexcept { return down_->as<float>(); }
  [[nodiscard]] float* query() const noexcept { return query_->as<float>(); }
  [[nodiscard]] float* value() const noexcept { return value_->as<float>(); }
  /// Null unless prefill(): [kPrefillKeyChunk, H, N + V], [kPrefillKeyChunk, R], and 2 max_tokens
  /// records of StateShape{H, V}.
  [[nodiscard]] float* kv() const noexcept { return kv_ ? kv_->as<float>() : nullptr; }
  [[nodiscard]] float* key_rope() const noexcept {
    return key_rope_ ? key_rope_->as<float>() : nullptr;
  }
  [[nodiscard]] float* states() const noexcept { return states_ ? states_->as<float>() : nullptr; }

 private:
  std::unique_ptr<Buffer> allocate(std::int64_t floats);

  Backend* backend_;
  ModelShape shape_;
  MlaWorkspaceOptions options_;
  std::size_t bytes_ = 0;
  std::unique_ptr<Buffer> down_, query_, value_;
  std::unique_ptr<Buffer> kv_, key_rope_, states_;
};

}  // namespace tributary
