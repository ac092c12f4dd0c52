// Passes one golden case through the MLA layer: rows, queries and outputs, and all computed values,
// for comparison. A pool or a service may run the attention between them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/layer/mla_layer.h"
#include "core/model/pool_shape.h"
#include "core/reference/golden_case.h"

namespace tributary {

/// The computed results, laid out as the expected tensors are (golden_case.h), in fp32.
struct GoldenResults {
  std::vector<float> prefill_output;  // [B, P, hidden]
  std::vector<float> decode_output;   // [B, D, hidden]
  std::vector<float> cache;           // [B, T, C + R], as stored
  std::vector<float> query;           // [B, D, H, C + R], absorbed, before rounding to its type
  std::vector<float> latent;          // [B, D, H, C]
  std::vector<float> lse;             // [B, D, H]
};

/// Two threads must not use it at once.
class GoldenLayer {
 public:
  GoldenLayer(const GoldenCase& golden, const AttentionShape& shape, Backend& backend);

  [[nodiscard]] const AttentionShape& shape() const noexcept { return shape_; }
  /// Hidden states [count, hidden_size] of a batch entry's tokens.
  [[nodiscard]] std::span<const float> hidden(std::int64_t entry, std::int64_t position,
                                              std::int64_t count) const;

  /// Writes latent rows of positions begin .. begin + count - 1 of the prompt of batch entry
  /// `entry` to host memory, in the cache's row type.
  void prompt_rows(std::int64_t entry, std::int64_t begin, std::int64_t count, std::byte* rows);
  /// Writes the token record of a decoded token to the backend's memory: query, then row.
  void write_record(std::int64_t entry, std::int64_t position, std::byte* record);
  /// Takes the merged state of a decoded token, a record of StateShape in the backend's memory.
  void take_state(std::int64_t entry, std::int64_t position, const float* record);
  /// Computes the output of the prompt of batch entry `entry`, attention included.
  void prefill(int entry);

  [[nodiscard]] GoldenResults& results() noexcept { return results_; }

 private:
  void encode(std::int64_t count, const Buffer& values, std::byte* rows);
  void decode(std::int64_t count, const std::byte* rows);
  void latent_rows(std::int64_t entry, std::int64_t begin, std::int64_t count);
  void download(const float* device, std::vector<float>& results, std::int64_t offset,
                std::int64_t count);

  const GoldenCase& golden_;
  AttentionShape shape_;
  Backend& backend_;
  MlaLayer layer_;
  GoldenResults results_;
  // Device scratch for up to a whole prompt of one sequence.
  std::unique_ptr<Buffer> hidden_, rows_, stored_, queries_, output_;
};

}  // namespace tributary
