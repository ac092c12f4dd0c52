// Five ways to compute the same decode step of one MLA layer. RMSNorm and RoPE are omitted: they
// are small and the same in all five.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "bench/absorption_math.h"
#include "bench/absorption_weights.h"
#include "core/model/model_shape.h"

namespace tributary::bench {

enum class Form {
  kDecompressed,          // stores k and v of every head
  kCompressed,            // stores latent rows, decompresses them in every step
  kAbsorbedConcatenated,  // W_UK absorbed into the query; q_nope|q_pe and c_kv|k_pe are
                          // concatenated before one product
  kAbsorbedAdded,         // the same, but the scores of two products are added: no copies
  kMaterialised,          // the same, with W_UQ W_UK and W_UV W_O multiplied in advance
};

struct FormFigures {
  Form form;
  std::string_view name;
  // Published for one cached token in one layer of DeepSeek-V2's shape with a bf16 cache. The
  // counters are checked against these.
  double cache_kilobytes;  // 10^3 bytes stored
  double attend_megaflop;  // 10^6 FLOP of a step
};
/// Tokens that Form::kCompressed decompresses at once: enough for sgemm to reach its full speed; 17
/// MB of keys or values for 128 heads of 128.
inline constexpr std::int64_t kDecompressChunk = 256;

inline constexpr std::array<FormFigures, 5> kForms = {{
    {Form::kDecompressed, "cache decompressed", 81.92, 0.08},
    {Form::kCompressed, "cache compressed", 1.152, 33.64},
    {Form::kAbsorbedConcatenated, "absorbed, concatenated", 1.152, 0.28},
    {Form::kAbsorbedAdded, "absorbed, scores added", 1.152, 0.28},
    {Form::kMaterialised, "projections materialised", 1.152, 0.28},
}};

struct StepCost {
  double project_seconds = 0, attend_seconds = 0;
  std::int64_t project_flop = 0, attend_flop = 0;
  [[nodiscard]] double seconds() const noexcept { return project_seconds + attend_seconds; }
};

/// Cache and workspace of one form for `batch` sequences of `length` tokens, the new one included.
class Decoder {
 public:
  Decoder(Form form, const ModelShape& shape, const Weights& weights, std::int64_t batch,
          std::int64_t length, Arithmetic& arithmetic);

  /// Bytes of cache (bf16) and workspace (fp32, and bf16 for copied rows) that a Decoder needs.
  struct Memory {
    std::size_t cache_bytes = 0, workspace_bytes = 0;
    friend bool operator==(const Memory&, const Memory&) = default;
  };
  [[nodiscard]] static Memory memory_needed(Form form, const ModelShape& shape, std::int64_t batch,
                                            std::int64_t length);
  [[nodiscard]] const Memory& memory() const noexcept { return memory_; }

  /// Fills the cache with random numbers of standard deviation about 0.6.
  void fill();
  /// Stores a latent row [C + R] in this form's way: rounded to bf16, or decompressed and rounded.
  void store(std::int64_t sequence, std::int64_t position, const float* row);

  /// hidden [batch, hidden_size] -> output [batch, hidden_size].
  StepCost step(const float* hidden, float* output);

 private:
  void project();
  void attend();
  void attend_decompressed(std::int64_t sequence);
  void attend_compressed(std::int64_t sequence);
  void attend_absorbed(std::int64_t sequence);
  void concatenate();
  void finish(float* output);
  [[nodiscard]] bool absorbed() const noexcept {
    return form_ != Form::kDecompressed && form_ != Form::kCompressed;
  }
  /// y [batch, rows] = W x; y is dense, x has a stride.
  void linear(const Array<float>& weight, std::int64_t rows, std::int64_t cols, const float* x,
              std::int64_t x_stride, float* y);

  Form form_;
  const Weights* weights_;
  Arithmetic* arithmetic_;
  std::int64_t hidden_, heads_, q_rank_, rank_, nope_, rope_, value_;
  float scale_;
  std::int64_t batch_, length_;
  Memory memory_;

  // Cache: one of the two pairs.
  Array<bf16> keys_, values_;  // [batch, length, H, N + R] and [batch, length, H, V]
  Array<bf16> c_kv_, k_pe_;    // [batch, length, C] and [batch, length, R]
  // Workspace.
  Array<float> down_;      // [batch, q_lora + C + R]
  Array<float> query_;     // [batch, H, N + R]
  Array<float> q_c_;       // [batch, H, C] absorbed queries
  Array<float> q_rope_;    // [batch, H, R]; only when materialised, else inside query_
  Array<float> q_joined_;  // [batch, H, C + R]; only when concatenated
  Array<bf16> joined_;     // [batch, length, C + R]; likewise
  Array<float> rows_;      // absorbed: [length, C + R]; compressed: [chunk, C + R]
  Array<float> up_;        // decompressed keys or values: [chunk, H max(N, V)]
  Array<float> scores_;    // [H, length]
  Array<float> latent_;    // [batch, H, C], attention's output in the absorbed forms
  Array<float> head_out_;  // [batch, H, V]
};

}  // namespace tributary::bench
