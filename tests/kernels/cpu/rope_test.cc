// RoPE of the CPU backend: bit for bit plain arithmetic in double, whatever was rotated before.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

struct RopeCase {
  std::int64_t heads = 0, pairs = 0;
  std::vector<std::int64_t> positions;
  double slowest = 1;  // frequencies are 1 and below
};

std::vector<double> frequencies_of(const RopeCase& rope) {
  std::vector<double> frequencies(static_cast<std::size_t>(rope.pairs));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = rope.slowest / static_cast<double>(1 + 7 * i);
  }
  return frequencies;
}

std::vector<float> expected(const RopeCase& rope, const std::vector<float>& x) {
  const std::vector<double> frequencies = frequencies_of(rope);
  std::vector<float> y(x.size());
  std::size_t at = 0;
  for (const std::int64_t position : rope.positions) {
    for (std::int64_t head = 0; head < rope.heads; ++head) {
      for (const double frequency : frequencies) {
        const double angle = static_cast<double>(position) * frequency;
        const double even = x[at];
        const double odd = x[at + 1];
        y[at] = static_cast<float>(even * std::cos(angle) - odd * std::sin(angle));
        y[at + 1] = static_cast<float>(even * std::sin(angle) + odd * std::cos(angle));
        at += 2;
      }
    }
  }
  return y;
}

std::vector<float> rotated(Backend& backend, const RopeCase& rope, std::vector<float> x) {
  const std::vector<double> frequencies = frequencies_of(rope);
  const std::int64_t width = 2 * rope.pairs;
  backend.call(RopeArgs{.positions = rope.positions,
                        .frequencies = frequencies,
                        .heads = rope.heads,
                        .x = x.data(),
                        .x_token_stride = rope.heads * width,
                        .x_head_stride = width,
                        .y = x.data(),
                        .y_token_stride = rope.heads * width,
                        .y_head_stride = width});
  return x;
}

TEST(CpuRope, HasTheBitsOfPlainArithmeticOnEveryInstructionSet) {
  std::vector<std::int64_t> many(600);  // more than one block of angles
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i * i);
  // Each case after the one before it on one backend: what is kept of its angles must not be used.
  const std::vector<RopeCase> cases{
      {.heads = 3, .pairs = 32, .positions = {0, 1, 77, 163'839}},
      {.heads = 1, .pairs = 32, .positions = {0, 1, 77, 163'839}},
      {.heads = 1, .pairs = 32, .positions = {0, 1, 77, 163'839}, .slowest = 0.5},
      {.heads = 2, .pairs = 32, .positions = {0, 1, 78, 163'839}, .slowest = 0.5},
      {.heads = 5, .pairs = 1, .positions = {5}},
      {.heads = 2, .pairs = 3, .positions = {5, 4}},
      {.heads = 2, .pairs = 11, .positions = {5, 4, 3}},
      {.heads = 2, .pairs = 5, .positions = many},
      {.heads = 2, .pairs = 2, .positions = {1, 2}, .slowest = 0.0},
      {.heads = 2, .pairs = 2, .positions = {1, 2}, .slowest = -0.0},
  };
  for (const std::string_view name : cpu_instruction_sets()) {
    for (const int threads : {1, 3}) {
      const auto backend =
          make_cpu_backend({.threads = threads, .instruction_set = std::string(name)});
      Normal normal(9);
      for (std::size_t c = 0; c < cases.size(); ++c) {
        const RopeCase& rope = cases[c];
        const std::vector<float> x = normal.floats(
            rope.positions.size() * static_cast<std::size_t>(2 * rope.heads * rope.pairs));
        const std::vector<float> want = expected(rope, x);
        const std::vector<float> got = rotated(*backend, rope, x);
        for (std::size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i]))
              << name << ", " << threads << " threads, case " << c << ", element " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tributary::test
