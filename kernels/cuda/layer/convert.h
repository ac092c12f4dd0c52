// Kernel of ConvertArgs. The rounding is core's own, so that every NaN keeps the bits that the
// other backends give it.
#pragma once

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr unsigned kConvertThreads = 256;

TRIBUTARY_DEVICE void convert_element(float value, float& to) {
  to = value;
}
TRIBUTARY_DEVICE void convert_element(float value, bf16& to) {
  to = to_bf16(value);
}
TRIBUTARY_DEVICE void convert_element(bf16 value, float& to) {
  to = to_float(value);
}
TRIBUTARY_DEVICE void convert_element(bf16 value, bf16& to) {
  to = value;
}

/// Rows of plain elements, which is true of every format that the backend lists. Block (r, j): the
/// j-th of `shares` interleaved shares of row r.
template <typename From, typename To>
TRIBUTARY_DEVICE void convert_block(const ConvertArgs& c, unsigned shares) {
  const auto row = static_cast<std::size_t>(ptx::block());
  const auto* from = reinterpret_cast<const From*>(static_cast<const std::byte*>(c.src) +
                                                   row * c.src_stride_bytes);
  auto* to = reinterpret_cast<To*>(static_cast<std::byte*>(c.dst) + row * c.dst_stride_bytes);
  const auto values = static_cast<std::int64_t>(c.src_row.values());
  const std::int64_t step = static_cast<std::int64_t>(shares) * kConvertThreads;
  for (std::int64_t i = static_cast<std::int64_t>(ptx::block_y()) * kConvertThreads + ptx::thread();
       i < values; i += step) {
    convert_element(from[i], to[i]);
  }
}

}  // namespace tributary::cuda
