// The activations of a product are packed once a call, whatever the number of panels, and in parts
// where they are many; who is packed with whom changes no bit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "tests/kernels/cpu/emulated_table.h"

namespace tributary::cpu {
namespace {

/// Numbers that bf16 holds; their sums round.
std::vector<float> numbers(std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 4;
  for (float& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<float>(state >> 24) * (state & 0x800000U ? 0x1p-8F : -0x1p-13F);
  }
  return values;
}

std::vector<float> product(Backend& backend, const Weight& weight, const std::vector<float>& x,
                           std::int64_t tokens) {
  std::vector<float> y(static_cast<std::size_t>(tokens * weight.rows()));
  backend.call(GemmArgs{.weight = &weight,
                        .tokens = tokens,
                        .x = x.data(),
                        .x_token_stride = weight.cols(),
                        .y = y.data(),
                        .y_token_stride = weight.rows()});
  return y;
}

// A kernel's functions know nothing but their arguments.
std::atomic<int> packed_blocks{0};
GemmKernel counted;

TEST(PackedActivations, EveryBlockIsPackedOnceACall) {
  std::vector<const KernelTable*> tables{usable_kernel_tables().front()};
  if (const KernelTable* emulated = emulated_amx_table()) tables.push_back(emulated);
  constexpr std::int64_t kRows = 700;  // 11 panels
  constexpr std::int64_t kCols = 333;  // 6 blocks of columns
  const std::vector<float> values = numbers(kRows * kCols);
  const std::vector<float> x = numbers(40 * kCols);
  for (const KernelTable* table : tables) {
    counted = table->gemm_bf16;
    KernelTable copy = *table;
    copy.gemm_bf16.pack = [](const PackKernelArgs& args) {
      ++packed_blocks;
      counted.pack(args);
    };
    for (const int threads : {1, 3}) {
      const auto backend = make_table_backend(copy, threads);
      const auto weight = backend->make_weight(
          {.data = values.data(), .rows = kRows, .cols = kCols, .row_stride = kCols});
      packed_blocks = 0;
      (void)product(*backend, *weight, x, 40);
      EXPECT_EQ(packed_blocks, 6) << table->name;
    }
  }
}

TEST(PackedActivations, MoreThanArePackedAtATimeHaveTheBitsOfTheirOwn) {
  constexpr std::int64_t kRows = 4 * kPanel;
  constexpr std::int64_t kCols = 66'000;  // of 128 tokens 32 MiB and more
  constexpr std::int64_t kTokens = 138;
  const std::vector<float> values = numbers(kRows * kCols);
  const std::vector<float> x = numbers(kTokens * kCols);
  const auto backend = make_table_backend(*usable_kernel_tables().front(), 2);
  const auto weight = backend->make_weight(
      {.data = values.data(), .rows = kRows, .cols = kCols, .row_stride = kCols});
  const std::vector<float> all = product(*backend, *weight, x, kTokens);
  for (const std::int64_t token : {0, 127, 128, 137}) {
    const auto from = x.begin() + token * kCols;
    const std::vector<float> alone = product(*backend, *weight, {from, from + kCols}, 1);
    EXPECT_EQ(std::memcmp(alone.data(), all.data() + token * kRows, alone.size() * sizeof(float)),
              0)
        << token;
  }
}

}  // namespace
}  // namespace tributary::cpu
