#include "bench/weight_forms.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"

namespace tributary::bench {
namespace {

constexpr std::array<std::int64_t, 4> kBatches{16, 6, 4, 1};

struct Form {
  std::string_view name;
  double bytes;  // of a weight, its share of the scales included
};
constexpr std::array<Form, 3> kForms{{{"fp32", 4}, {"bf16", 2}, {"FP8", 1.0625}}};

/// e4m3 numbers as a published matrix has them: of a normal distribution, the largest of some
/// thousand near 448. Subnormal ones, which some processors multiply slowly, are as rare.
std::vector<float> published_numbers() {
  std::vector<float> exact;
  for (int code = 0; code < 256; ++code) {
    const float number = f8_e4m3_to_float(static_cast<std::uint8_t>(code));
    if (!std::isnan(number)) exact.push_back(number);
  }
  std::ranges::sort(exact);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 110);
  std::vector<float> numbers(4096);
  for (float& number : numbers) {
    const float value = std::clamp(normal(random), exact.front(), exact.back());
    number = *std::ranges::lower_bound(exact, value);
  }
  return numbers;
}

/// A weight that takes the form `form`: e4m3 numbers times scales, with or without their scales, or
/// such numbers alone.
std::unique_ptr<Weight> make_weight(Backend& backend, std::size_t form, std::int64_t rows,
                                    std::int64_t cols) {
  const std::vector<float> numbers = published_numbers();
  std::mt19937 random(6);
  const std::int64_t across = ceil_div(cols, kScaleBlock);
  std::vector<float> scales(static_cast<std::size_t>(ceil_div(rows, kScaleBlock) * across), 1);
  if (kForms[form].name != "bf16") {
    for (float& scale : scales) scale = 1e-4F + 1e-9F * static_cast<float>(random() % 100000);
  }
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    const float* row_scales = scales.data() + row / kScaleBlock * across;
    float* to = values.data() + row * cols;
    for (std::int64_t col = 0; col < cols; ++col) {
      to[col] = numbers[random() % numbers.size()] * row_scales[col / kScaleBlock];
    }
  }
  WeightView view{.data = values.data(), .rows = rows, .cols = cols, .row_stride = cols};
  if (kForms[form].name == "FP8") view.scales = {.data = scales.data(), .cols = cols};
  return backend.make_weight(view);
}

void compare_forms(Machine& machine, Backend& backend, std::string_view what, std::int64_t rows,
                   std::int64_t cols) {
  std::array<std::unique_ptr<Weight>, kForms.size()> weights;
  for (std::size_t form = 0; form < kForms.size(); ++form) {
    weights[form] = make_weight(backend, form, rows, cols);
  }
  for (const std::int64_t batch : kBatches) {
    const auto x = backend.allocate(static_cast<std::size_t>(batch * cols) * sizeof(float));
    const auto y = backend.allocate(static_cast<std::size_t>(batch * rows) * sizeof(float));
    for (std::int64_t i = 0; i < batch * cols; ++i) x->as<float>()[i] = static_cast<float>(i % 13);
    std::array<std::function<void()>, kForms.size()> works;
    for (std::size_t form = 0; form < kForms.size(); ++form) {
      works[form] = [&, form] {
        backend.call(GemmArgs{.weight = weights[form].get(),
                              .tokens = batch,
                              .x = x->as<float>(),
                              .x_token_stride = cols,
                              .y = y->as<float>(),
                              .y_token_stride = rows});
      };
    }
    const std::vector<Machine::Figure> figures = machine.measure(works);
    for (std::size_t form = 0; form < kForms.size(); ++form) {
      fmt::print("{:6} {:5} x {:5}, batch {:2}, {:4}", what, rows, cols, batch, kForms[form].name);
      if (figures[form].rounds == 0) {
        fmt::print(": all {} rounds were disturbed\n", figures[form].dropped);
        continue;
      }
      const double seconds = figures[form].seconds;
      const double read = static_cast<double>(rows * cols) * kForms[form].bytes * 1e-9 / seconds;
      const double rate = static_cast<double>(2 * batch * rows * cols) * 1e-9 / seconds;
      fmt::print(
          " {:7.0f} us {:6.1f} GB/s, {:3.0f}% of read {:.1f}; {:4.0f} GFLOP/s, {:2.0f}% of peak; "
          "{:.2f} x fp32  ({} rounds, {} dropped)\n",
          seconds * 1e6, read, 100 * read / machine.read_gb_s(), machine.read_gb_s(), rate,
          100 * rate / figures[form].peak_gflops, figures[0].seconds / seconds,
          figures[form].rounds, figures[form].dropped);
    }
  }
}

}  // namespace

void weight_forms(Machine& machine, Backend& backend) {
  fmt::print("\nProducts with weights as kept, {} thread(s); x fp32: times as fast as with fp32:\n",
             machine.threads());
  compare_forms(machine, backend, "q_b", 24576, 1536);
  compare_forms(machine, backend, "o_proj", 7168, 16384);
}

}  // namespace tributary::bench
