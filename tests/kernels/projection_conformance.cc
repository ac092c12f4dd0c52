// Products, norms, RoPE and conversions against float64; a token's bits do not depend on others.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/dtype.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

struct GemmShape {
  std::int64_t batch, rows, cols;
};

std::size_t size(std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) {
  return static_cast<std::size_t>(a * b * c);
}

// Dense x and y; the whole result on the host.
std::vector<float> run_gemm(Backend& backend, const Weight& weight, std::int64_t tokens,
                            const float* device_x) {
  const std::int64_t batch = weight.batch();
  std::vector<float> y(size(tokens, batch, weight.rows()), std::numeric_limits<float>::quiet_NaN());
  const auto buffer = backend.allocate(y.size() * sizeof(float));
  backend.call(GemmArgs{.weight = &weight,
                        .tokens = tokens,
                        .x = device_x,
                        .x_token_stride = batch * weight.cols(),
                        .x_batch_stride = weight.cols(),
                        .y = buffer->as<float>(),
                        .y_token_stride = batch * weight.rows(),
                        .y_batch_stride = weight.rows()});
  backend.download(std::as_writable_bytes(std::span(y)), buffer->data());
  return y;
}

TEST_P(BackendConformance, GemmIsNearFloat64) {
  std::uint32_t seed = 50;
  for (const GemmShape& shape :
       {GemmShape{1, 1, 1}, {1, 130, 77}, {3, 64, 64}, {2, 63, 200}, {1, 5, 2048}, {4, 100, 33}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Normal normal(++seed);
      const std::int64_t tokens = 9;
      const std::vector<float> w = normal.floats(size(shape.batch, shape.rows, shape.cols));
      const std::vector<float> x = normal.floats(size(tokens, shape.batch, shape.cols));
      const std::vector<double> exact_w = rounded(w, dtype);
      const std::vector<std::byte> stored = to_bytes(w, dtype);
      const auto weight = backend().make_weight({.data = stored.data(),
                                                 .dtype = dtype,
                                                 .batch = shape.batch,
                                                 .rows = shape.rows,
                                                 .cols = shape.cols,
                                                 .batch_stride = shape.rows * shape.cols,
                                                 .row_stride = shape.cols});
      const auto device_x = device(x);
      const std::vector<float> y = run_gemm(backend(), *weight, tokens, device_x->as<float>());
      for (std::int64_t tb = 0; tb < tokens * shape.batch; ++tb) {
        const std::int64_t b = tb % shape.batch;
        for (std::int64_t r = 0; r < shape.rows; ++r) {
          double sum = 0;
          double norm_w = 0;
          double norm_x = 0;
          for (std::int64_t c = 0; c < shape.cols; ++c) {
            const double wi = exact_w[size(b * shape.rows + r, shape.cols) + size(c)];
            const double xi = x[size(tb, shape.cols) + size(c)];
            sum += wi * xi;
            norm_w += wi * wi;
            norm_x += xi * xi;
          }
          // n independent roundings of partial sums of up to |w| |x| / sqrt(n): kU |w| |x|,
          // times 4.
          ASSERT_NEAR(y[size(tb, shape.rows) + size(r)], sum, 4 * kU * std::sqrt(norm_w * norm_x))
              << shape.batch << " x " << shape.rows << " x " << shape.cols << ", token " << tb;
        }
      }
    }
  }
}

TEST_P(BackendConformance, GemmOfATokenDoesNotDependOnTheOthers) {
  for (const GemmShape& shape : {GemmShape{1, 70, 130}, {3, 64, 65}, {2, 9, 300}}) {
    Normal normal(60);
    const std::int64_t most = 300;
    const std::vector<std::byte> w =
        to_bytes(normal.floats(size(shape.batch, shape.rows, shape.cols)), DType::kBF16);
    const auto weight = backend().make_weight({.data = w.data(),
                                               .dtype = DType::kBF16,
                                               .batch = shape.batch,
                                               .rows = shape.rows,
                                               .cols = shape.cols,
                                               .batch_stride = shape.rows * shape.cols,
                                               .row_stride = shape.cols});
    const auto x = device(normal.floats(size(most, shape.batch, shape.cols)));
    const std::size_t record = size(shape.batch, shape.rows);
    const std::vector<float> all = run_gemm(backend(), *weight, most, x->as<float>());
    for (const std::int64_t tokens : {1, 2, 3, 5, 6, 7, 12, 16, 17, 64, 129}) {
      for (const std::int64_t first : {0, 1, 11, 150}) {
        const float* from = x->as<float>() + first * shape.batch * shape.cols;
        const std::vector<float> some = run_gemm(backend(), *weight, tokens, from);
        EXPECT_EQ(std::memcmp(some.data(), &all[size(first) * record], some.size() * sizeof(float)),
                  0)
            << tokens << " tokens from " << first << " of " << shape.rows << " x " << shape.cols;
      }
    }
  }
}

TEST_P(BackendConformance, GemmTakesStridesOfWeightsAndActivations) {
  // Per head W_UK of a [heads * (nope + v), rank] matrix, transposed by strides, as absorption uses
  // it: x in the middle of a query, y in the middle of an absorbed one.
  const std::int64_t heads = 3, nope = 10, v = 6, rank = 70, rope = 4, tokens = 5;
  Normal normal(61);
  const std::vector<float> kv_b = normal.floats(size(heads * (nope + v), rank));
  const auto weight = backend().make_weight({.data = kv_b.data(),
                                             .dtype = DType::kF32,
                                             .batch = heads,
                                             .rows = rank,
                                             .cols = nope,
                                             .batch_stride = (nope + v) * rank,
                                             .row_stride = 1,
                                             .col_stride = rank});
  const std::vector<float> x = normal.floats(size(tokens, heads, nope + rope));
  const std::vector<float> before(size(tokens, heads, rank + rope), -7.0F);
  const auto device_x = device(x);
  const auto device_y = device(before);
  backend().call(GemmArgs{.weight = weight.get(),
                          .tokens = tokens,
                          .x = device_x->as<float>(),
                          .x_token_stride = heads * (nope + rope),
                          .x_batch_stride = nope + rope,
                          .y = device_y->as<float>(),
                          .y_token_stride = heads * (rank + rope),
                          .y_batch_stride = rank + rope});
  const std::vector<float> y = host<float>(*device_y);
  for (std::int64_t th = 0; th < tokens * heads; ++th) {
    for (std::int64_t r = 0; r < rank; ++r) {
      double sum = 0;
      for (std::int64_t n = 0; n < nope; ++n) {
        sum += static_cast<double>(kv_b[size((th % heads) * (nope + v) + n, rank) + size(r)]) *
               x[size(th, nope + rope) + size(n)];
      }
      ASSERT_NEAR(y[size(th, rank + rope) + size(r)], sum, 1e-5);
    }
    for (std::int64_t r = rank; r < rank + rope; ++r) {
      ASSERT_EQ(y[size(th, rank + rope) + size(r)], -7.0F) << "written between the outputs";
    }
  }
}

TEST_P(BackendConformance, RmsNormIsNearFloat64AndWorksInPlace) {
  for (const std::int64_t width : {1, 7, 64, 576, 1536}) {
    Normal normal(70);
    const std::int64_t tokens = 3;
    const std::int64_t stride = width + 5;
    const std::vector<float> x = normal.floats(size(tokens, stride), 3);
    const std::vector<float> weight = normal.floats(size(width));
    const float eps = 1e-6F;
    const auto device_x = device(x);
    const auto device_w = device(weight);
    RmsNormArgs args{.tokens = tokens,
                     .width = width,
                     .x = device_x->as<float>(),
                     .x_token_stride = stride,
                     .weight = device_w->as<float>(),
                     .eps = eps,
                     .y = device_x->as<float>(),
                     .y_token_stride = stride};
    backend().call(args);
    const std::vector<float> y = host<float>(*device_x);
    for (std::int64_t t = 0; t < tokens; ++t) {
      double squares = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        squares += std::pow(static_cast<double>(x[size(t, stride) + size(i)]), 2);
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + eps);
      for (std::int64_t i = 0; i < stride; ++i) {
        const std::size_t at = size(t, stride) + size(i);
        if (i >= width) {
          ASSERT_EQ(y[at], x[at]) << "written beyond the width";
          continue;
        }
        // The scale, and two products, rounded once each; one more if the sum of squares is fp32.
        const double expected = x[at] * scale * weight[size(i)];
        ASSERT_NEAR(y[at], expected, 4 * kU * std::abs(expected)) << "width " << width;
      }
    }
  }
}

TEST_P(BackendConformance, RopeIsNearFloat64AtLargePositionsAndWorksInPlace) {
  for (const std::int64_t dim : {2, 6, 64, 130}) {
    Normal normal(80);
    const std::int64_t heads = 3;
    const std::vector<std::int64_t> positions{0, 1, 163839, 1000000};
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const std::int64_t head_stride = dim + 3;
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      frequencies.push_back(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
    }
    const std::vector<float> x = normal.floats(size(tokens, heads, head_stride));
    const auto device_x = device(x);
    backend().call(RopeArgs{.positions = positions,
                            .frequencies = frequencies,
                            .heads = heads,
                            .x = device_x->as<float>(),
                            .x_token_stride = heads * head_stride,
                            .x_head_stride = head_stride,
                            .y = device_x->as<float>(),
                            .y_token_stride = heads * head_stride,
                            .y_head_stride = head_stride});
    const std::vector<float> y = host<float>(*device_x);
    for (std::int64_t th = 0; th < tokens * heads; ++th) {
      const auto position = static_cast<double>(positions[size(th / heads)]);
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        const std::size_t at = size(th, head_stride) + size(2 * i);
        const double angle = position * frequencies[size(i)];
        const double norm = std::hypot(x[at], x[at + 1]);
        // Angles in double; cos and sin may be rounded to fp32, then a product and a sum.
        ASSERT_NEAR(y[at], x[at] * std::cos(angle) - x[at + 1] * std::sin(angle), 4 * kU * norm);
        ASSERT_NEAR(y[at + 1], x[at] * std::sin(angle) + x[at + 1] * std::cos(angle),
                    4 * kU * norm);
      }
      for (std::int64_t i = dim; i < head_stride; ++i) {
        const std::size_t at = size(th, head_stride) + size(i);
        ASSERT_EQ(y[at], x[at]) << "written beyond the dimension";
      }
    }
  }
}

TEST_P(BackendConformance, LatentRowsAreNormAndRopeTogether) {
  // DeepSeek's, and widths that are no multiple of anything.
  for (const auto& [norm_width, rope_dim] :
       {std::pair<std::int64_t, std::int64_t>{512, 64}, {37, 70}}) {
    const std::int64_t width = norm_width;
    const std::int64_t dim = rope_dim;
    Normal normal(85);
    const std::vector<std::int64_t> positions{3, 163839, 0, 77, 5};
    const auto tokens = static_cast<std::int64_t>(positions.size());
    const std::int64_t from_stride = width + dim + 9;
    const std::int64_t to_stride = width + dim;
    const std::vector<double> frequencies(size(dim / 2), 0.37);
    const auto x = device(normal.floats(size(tokens, from_stride), 3));
    const auto weight = device(normal.floats(size(width)));
    const auto rows = [&](bool together) {
      const auto y = device(std::vector<float>(size(tokens, to_stride)));
      const LatentRowsArgs args{.norm = {.tokens = tokens,
                                         .width = width,
                                         .x = x->as<float>(),
                                         .x_token_stride = from_stride,
                                         .weight = weight->as<float>(),
                                         .eps = 1e-6F,
                                         .y = y->as<float>(),
                                         .y_token_stride = to_stride},
                                .rope = {.positions = positions,
                                         .frequencies = frequencies,
                                         .heads = 1,
                                         .x = x->as<float>() + width,
                                         .x_token_stride = from_stride,
                                         .x_head_stride = dim,
                                         .y = y->as<float>() + width,
                                         .y_token_stride = to_stride,
                                         .y_head_stride = dim}};
      if (together) {
        backend().call(args);
      } else {
        backend().call(args.norm);
        backend().call(args.rope);
      }
      return host<float>(*y);
    };
    EXPECT_EQ(rows(true), rows(false)) << width << " + " << dim;
    EXPECT_NE(rows(true), std::vector<float>(size(tokens, to_stride)));
  }
}

TEST_P(BackendConformance, ConvertRoundsAsTheScalarConversionDoes) {
  // Every pattern of the upper half with lower halves around a tie: ordinary numbers, subnormals,
  // infinities and all kinds of NaN.
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper <= 0xffff; ++upper) {
    for (const std::uint32_t lower : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      values.push_back(std::bit_cast<float>((upper << 16) | lower));
    }
  }
  // Rows of a width that is no vector's multiple, a gap between them.
  const std::int64_t width = 111;
  const auto rows = static_cast<std::int64_t>(values.size()) / width;
  const auto src = device(values);
  const std::vector<bf16> before(size(rows, width + 1), bf16{0x1234});
  const auto dst = device(before);
  backend().call(ConvertArgs{.rows = rows,
                             .src = src->data(),
                             .src_row = plain_row(width),
                             .src_stride_bytes = size(width) * sizeof(float),
                             .dst = dst->data(),
                             .dst_row = plain_row(width, DType::kBF16),
                             .dst_stride_bytes = size(width + 1) * sizeof(bf16)});
  const std::vector<bf16> halves = host<bf16>(*dst);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      ASSERT_EQ(halves[size(r, width + 1) + size(i)].bits,
                to_bf16(values[size(r, width) + size(i)]).bits);
    }
    ASSERT_EQ(halves[size(r, width + 1) + size(width)].bits, 0x1234) << "written into the gap";
  }
  const auto back = backend().allocate(size(rows, width) * sizeof(float));
  backend().call(ConvertArgs{.rows = rows,
                             .src = dst->data(),
                             .src_row = plain_row(width, DType::kBF16),
                             .src_stride_bytes = size(width + 1) * sizeof(bf16),
                             .dst = back->data(),
                             .dst_row = plain_row(width),
                             .dst_stride_bytes = size(width) * sizeof(float)});
  const std::vector<float> widened = host<float>(*back);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(widened[size(r, width) + size(i)]),
                std::uint32_t{halves[size(r, width + 1) + size(i)].bits} << 16);
    }
  }
}

TEST_P(BackendConformance, ConvertStoresRowsOfEveryFormatAsTheFormatDoes) {
  constexpr int kRank = 128;
  constexpr int kRope = 8;
  constexpr std::size_t kRows = 5;
  for (const RowFormat format : row_formats()) {
    const RowLayout row{format, kRank, kRope};
    const RowLayout plain = plain_row(kRank + kRope);
    const std::vector<float> values = Normal(9).floats(kRows * row.values());
    std::vector<std::byte> expected(kRows * row.bytes());
    row.encode(values, expected.data());
    std::vector<float> rounded = values;
    row.round(rounded);

    const auto source = device(values);
    const auto stored = device(std::vector<std::byte>(expected.size()));
    const auto copy = device(std::vector<std::byte>(expected.size()));
    const auto back = device(std::vector<float>(values.size()));
    const auto convert = [&](const Buffer& from, const RowLayout& from_row, const Buffer& to,
                             const RowLayout& to_row) {
      backend().call(ConvertArgs{.rows = kRows,
                                 .src = from.data(),
                                 .src_row = from_row,
                                 .src_stride_bytes = from_row.bytes(),
                                 .dst = to.data(),
                                 .dst_row = to_row,
                                 .dst_stride_bytes = to_row.bytes()});
    };
    convert(*source, plain, *stored, row);
    convert(*stored, row, *copy, row);
    convert(*copy, row, *back, plain);
    EXPECT_EQ(host<std::byte>(*stored), expected) << row_format_name(format);
    EXPECT_EQ(host<std::byte>(*copy), expected) << row_format_name(format);
    EXPECT_EQ(host<float>(*back), rounded) << row_format_name(format);
  }
}

}  // namespace
}  // namespace tributary::test
