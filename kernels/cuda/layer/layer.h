// Internal to kernels/cuda: the operations of a layer other than attention and products, one kernel
// each. Pointers are device pointers, and sizes were checked (core/interface/validate.h). Calls are
// enqueued and throw kInternal with CUDA's message if a launch is refused. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/interface/backend.h"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace tributary::cuda {

/// Copies rows to their slots. `tasks` and `item_layer` are device memory; a task of page kNoPage
/// does nothing, so that a captured launch can be padded.
inline constexpr std::int32_t kNoPage = -1;
struct AppendLaunch {
  const AppendTask* tasks = nullptr;
  std::int64_t count = 0;
  const std::int32_t* item_layer = nullptr;
  const std::byte* source = nullptr;
  std::size_t source_stride_bytes = 0;
  std::byte* cache = nullptr;  // [layer][page][kPageTokens] rows
  std::int64_t pages = 0;      // of a layer
  std::size_t row_bytes = 0;
  friend bool operator==(const AppendLaunch&, const AppendLaunch&) = default;
};
void enqueue(const AppendLaunch& launch, CUstream_st* stream);

/// dst record i = src record index[i]; kNoRecord copies nothing, so that a captured launch can be
/// padded.
inline constexpr std::int64_t kNoRecord = -1;
struct GatherLaunch {
  const std::int64_t* index = nullptr;
  std::int64_t count = 0;
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  std::size_t record_bytes = 0;
  friend bool operator==(const GatherLaunch&, const GatherLaunch&) = default;
};
void enqueue(const GatherLaunch& launch, CUstream_st* stream);

void enqueue(const ConvertArgs& args, CUstream_st* stream);
void enqueue(const RmsNormArgs& args, CUstream_st* stream);

/// RopeArgs with its spans on the device.
struct RopeLaunch {
  const std::int64_t* positions = nullptr;
  const double* frequencies = nullptr;
  std::int64_t tokens = 0, pairs = 0, heads = 0;
  const float* x = nullptr;
  std::int64_t x_token_stride = 0, x_head_stride = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0, y_head_stride = 0;
  friend bool operator==(const RopeLaunch&, const RopeLaunch&) = default;
};
[[nodiscard]] inline RopeLaunch describe_rope(const RopeArgs& args, const std::int64_t* positions,
                                              const double* frequencies) {
  return {.positions = positions,
          .frequencies = frequencies,
          .tokens = static_cast<std::int64_t>(args.positions.size()),
          .pairs = static_cast<std::int64_t>(args.frequencies.size()),
          .heads = args.heads,
          .x = args.x,
          .x_token_stride = args.x_token_stride,
          .x_head_stride = args.x_head_stride,
          .y = args.y,
          .y_token_stride = args.y_token_stride,
          .y_head_stride = args.y_head_stride};
}
void enqueue(const RopeLaunch& launch, CUstream_st* stream);

/// One block per token does both, one after the other.
struct LatentRowsLaunch {
  RmsNormArgs norm;
  RopeLaunch rope;
  friend bool operator==(const LatentRowsLaunch&, const LatentRowsLaunch&) = default;
};
void enqueue(const LatentRowsLaunch& launch, CUstream_st* stream);

void enqueue(const DenseAttendArgs& args, CUstream_st* stream);

/// Activations to the operand of a product: [batch][parts][rows][cols], zero where `rows` is beyond
/// `tokens` and `cols` beyond `width`. One part is fp32; three are bf16 and add up to the value
/// (cuda_projection.h says why).
struct PackLaunch {
  const float* x = nullptr;
  std::int64_t x_token_stride = 0, x_batch_stride = 0;
  std::int64_t tokens = 0, batch = 0, width = 0;
  std::int64_t rows = 0, cols = 0;
  std::byte* packed = nullptr;
};
void pack_float(const PackLaunch& launch, CUstream_st* stream);
void pack_parts(const PackLaunch& launch, CUstream_st* stream);

/// The sum of `parts` products [batch][parts][rows][cols] to strided outputs [tokens, batch,
/// width], the last part first (it is the smallest).
struct UnpackLaunch {
  const float* packed = nullptr;
  int parts = 1;
  std::int64_t rows = 0, cols = 0;
  std::int64_t tokens = 0, batch = 0, width = 0;
  float* y = nullptr;
  std::int64_t y_token_stride = 0, y_batch_stride = 0;
};
void unpack(const UnpackLaunch& launch, CUstream_st* stream);

/// Loads all of these kernels on the current device, as load_attend() does.
void load_layer();

}  // namespace tributary::cuda
