// Runs a golden case through MlaLayer on a backend: one cache whose pages are assigned by hand, the
// prompts first, then the decode steps. A pool does the same; here there is no pool.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/interface/backend.h"
#include "core/layer/mla_layer.h"
#include "core/reference/golden_case.h"

namespace tributary::test {

/// Device memory of `count` floats, and the copies to and from it.
class DeviceFloats {
 public:
  DeviceFloats(Backend& backend, std::int64_t count);
  DeviceFloats(Backend& backend, std::span<const float> values);

  [[nodiscard]] float* data() const { return buffer_->as<float>(); }
  [[nodiscard]] std::vector<float> host() const;

 private:
  Backend* backend_;
  std::int64_t count_;
  std::unique_ptr<Buffer> buffer_;
};

struct LayerRunOptions {
  int max_tokens = 128;  // of the workspace
  int step_tokens = 1;   // decode tokens of each sequence in one call, 1 .. kMaxStepTokens
};

/// Shapes as in GoldenGroup; rows are those that the cache holds, queries are c part then rope
/// part.
struct LayerRun {
  std::vector<float> prefill_output;  // [B, P, hidden_size]
  std::vector<float> decode_output;   // [B, D, hidden_size]
  std::vector<float> rows;            // [B, T, C + R]
  std::vector<float> decode_query;    // [B, D, H, C + R]
  std::vector<float> decode_lse;      // [B, D, H]
  std::vector<float> decode_latent;   // [B, D, H, C]

  friend bool operator==(const LayerRun&, const LayerRun&) = default;
};

[[nodiscard]] LayerRun run_layer(Backend& backend, const GoldenCase& golden,
                                 const LayerRunOptions& options);

}  // namespace tributary::test
