// Matrix products, RMSNorm, RoPE and conversions in float64; copies of records.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/base/dtype.h"
#include "kernels/reference/reference_ops.h"

namespace tributary::reference {

DenseWeight::DenseWeight(const WeightView& view)
    : Weight(view.batch, view.rows, view.cols),
      data_(allocate_aligned(
          static_cast<std::size_t>(view.batch * view.rows * view.cols) * sizeof(float),
          "a weight")) {
  const auto* floats = static_cast<const float*>(view.data);
  const auto* halves = static_cast<const bf16*>(view.data);
  auto* out = reinterpret_cast<float*>(data_.get());
  for (std::int64_t b = 0; b < view.batch; ++b) {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      for (std::int64_t c = 0; c < view.cols; ++c) {
        const std::int64_t at = b * view.batch_stride + r * view.row_stride + c * view.col_stride;
        *out++ = view.dtype == DType::kF32 ? floats[at] : to_float(halves[at]);
      }
    }
  }
}

void gemm(const DenseWeight& weight, const GemmArgs& args) {
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    for (std::int64_t b = 0; b < weight.batch(); ++b) {
      const float* x = args.x + t * args.x_token_stride + b * args.x_batch_stride;
      float* y = args.y + t * args.y_token_stride + b * args.y_batch_stride;
      for (std::int64_t r = 0; r < weight.rows(); ++r) {
        const float* w = weight.row(b, r);
        double sum = 0;
        for (std::int64_t c = 0; c < weight.cols(); ++c) sum += static_cast<double>(w[c]) * x[c];
        y[r] = static_cast<float>(sum);
      }
    }
  }
}

void run(const RmsNormArgs& args) {
  for (std::int64_t t = 0; t < args.tokens; ++t) {
    const float* x = args.x + t * args.x_token_stride;
    float* y = args.y + t * args.y_token_stride;
    double squares = 0;
    for (std::int64_t i = 0; i < args.width; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(args.width) + args.eps);
    for (std::int64_t i = 0; i < args.width; ++i) {
      y[i] = static_cast<float>(x[i] * scale * args.weight[i]);
    }
  }
}

void run(const RopeArgs& args) {
  for (std::size_t t = 0; t < args.positions.size(); ++t) {
    for (std::size_t i = 0; i < args.frequencies.size(); ++i) {
      const double angle = static_cast<double>(args.positions[t]) * args.frequencies[i];
      const double cos = std::cos(angle);
      const double sin = std::sin(angle);
      for (std::int64_t h = 0; h < args.heads; ++h) {
        const auto token = static_cast<std::int64_t>(t);
        const auto pair = static_cast<std::int64_t>(2 * i);
        const float* x = args.x + token * args.x_token_stride + h * args.x_head_stride + pair;
        float* y = args.y + token * args.y_token_stride + h * args.y_head_stride + pair;
        const double even = x[0];
        const double odd = x[1];
        y[0] = static_cast<float>(even * cos - odd * sin);
        y[1] = static_cast<float>(even * sin + odd * cos);
      }
    }
  }
}

void run(const GatherArgs& args) {
  for (std::size_t i = 0; i < args.index.size(); ++i) {
    std::memcpy(args.dst + i * args.record_bytes,
                args.src + static_cast<std::size_t>(args.index[i]) * args.record_bytes,
                args.record_bytes);
  }
}

void run(const ConvertArgs& args) {
  for (std::int64_t row = 0; row < args.rows; ++row) {
    convert_row(args, static_cast<std::size_t>(row));
  }
}

}  // namespace tributary::reference
