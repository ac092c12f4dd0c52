// The emulation itself: that collectives do what the PTX ISA says, and that mistakes are found.
#include "tests/kernels/cuda/emulation/simt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cuda/attend/ptx.h"

namespace tributary::test {
namespace {

namespace ptx = cuda::ptx;

std::string fault_of(const simt::Launch& launch, const std::function<void()>& kernel) {
  try {
    simt::run(launch, kernel);
  } catch (const simt::Fault& fault) {
    return fault.what();
  }
  return "none";
}

// Small integers, exact in bf16 and in every sum.
float value_of(std::size_t row, std::size_t column) {
  return static_cast<float>((row * 7 + column * 3) % 11) - 5;
}

std::uint32_t address_of(std::size_t offset) {
  return static_cast<std::uint32_t>(offset);
}

// A row-major [rows][columns] matrix of bf16 in shared memory, written by the first thread.
void store_matrix(std::size_t at, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; column += 2) {
      ptx::store_shared(address_of(at + (row * columns + column) * 2),
                        ptx::pack_bf16(value_of(row, column), value_of(row, column + 1)));
    }
  }
}

TEST(Simt, LoadsAndProductsOfMatricesMultiply) {
  // A [16 x 16] row-major; B as [8 columns][16] for the plain load, as [16][8] for the transposed.
  constexpr std::size_t kB = 1024;
  constexpr std::size_t kTransposed = 2048;
  std::array<std::array<float, 8>, 16> product{};
  std::array<std::array<float, 8>, 16> transposed{};
  simt::run({.threads = 32, .shared_bytes = 4096}, [&] {
    const std::size_t lane = ptx::thread();
    if (lane == 0) {
      store_matrix(0, 16, 16);
      store_matrix(kB, 8, 16);
      store_matrix(kTransposed, 16, 8);
    }
    ptx::sync_block();
    std::uint32_t a[4];
    std::uint32_t b[4];
    std::uint32_t t[4];
    ptx::load_matrices(address_of((lane % 16 * 16 + lane / 16 * 8) * 2), a);
    ptx::load_matrices(address_of(kB + (lane % 8 * 16 + lane / 8 % 2 * 8) * 2), b);
    ptx::load_matrices_transposed(address_of(kTransposed + lane % 16 * 8 * 2), t);
    float sum[4] = {1, 1, 1, 1};
    ptx::multiply_add(sum, a, b[0], b[1]);
    float other[4] = {};
    ptx::multiply_add(other, a, t[0], t[1]);
    for (std::size_t i = 0; i < 4; ++i) {
      product[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = sum[i];
      transposed[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = other[i];
    }
  });
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 8; ++column) {
      float expected = 1;
      float expected_transposed = 0;
      for (std::size_t k = 0; k < 16; ++k) {
        expected += value_of(row, k) * value_of(column, k);
        expected_transposed += value_of(row, k) * value_of(k, column);
      }
      EXPECT_EQ(product[row][column], expected);
      EXPECT_EQ(transposed[row][column], expected_transposed);
    }
  }
}

TEST(Simt, CountsConflictsOfBanks) {
  for (const std::uint32_t stride : {128U, 144U, 16U}) {
    const simt::Counters counters = simt::run({.threads = 32, .shared_bytes = 8192}, [stride] {
      std::uint32_t matrices[4];
      ptx::load_matrices(ptx::thread() * stride, matrices);
    });
    EXPECT_EQ(counters.matrix_loads, 4U);
    EXPECT_EQ(counters.matrix_conflicts, stride == 128 ? 4U : 0U) << stride;
  }
}

TEST(Simt, ShufflesAndRunsEveryBlock) {
  std::vector<float> sums(6);
  simt::run({.blocks = 3, .blocks_y = 2, .threads = 32}, [&] {
    auto sum = static_cast<float>(ptx::thread());
    for (unsigned bits = 16; bits > 0; bits /= 2) sum += ptx::shuffle_xor(sum, bits);
    if (ptx::thread() == 0) {
      sums[ptx::block_y() * 3 + ptx::block()] = sum + static_cast<float>(ptx::block());
    }
  });
  EXPECT_EQ(sums, (std::vector<float>{496, 497, 498, 496, 497, 498}));
}

// Every thread copies 16 bytes and reads those of its neighbour, with or without the necessary wait
// and barrier.
int wrong_reads(bool wait, bool barrier) {
  std::vector<float> source(4 * 64, 1.0F);
  int wrong = 0;
  simt::run({.threads = 64, .shared_bytes = 1024}, [&] {
    const unsigned thread = ptx::thread();
    ptx::copy_async(thread * 16, &source[std::size_t{4} * thread], 16);
    ptx::commit_copies();
    if (wait) ptx::wait_copies(0);
    if (barrier) ptx::sync_block();
    if (ptx::load_shared((thread + 1) % 64 * 16) != 1.0F) ++wrong;
  });
  return wrong;
}

TEST(Simt, FindsCopiesReadTooEarly) {
  EXPECT_EQ(wrong_reads(true, true), 0);
  EXPECT_GT(wrong_reads(true, false), 0);
  EXPECT_GT(wrong_reads(false, true), 0);
}

TEST(Simt, FindsCopiesIssuedTooEarly) {
  const std::vector<float> source(4, 1.0F);
  float seen = 0;
  simt::run({.threads = 32, .shared_bytes = 16}, [&] {
    if (ptx::thread() != 0) return;
    ptx::copy_async(0, source.data(), 16);
    ptx::commit_copies();
    ptx::wait_copies(0);
    ptx::copy_async(0, source.data(), 0);
    seen = ptx::load_shared(0);
  });
  EXPECT_TRUE(std::isnan(seen));
}

TEST(Simt, CopiesFillWithZerosAndWaitForTheOldestGroups) {
  const std::vector<float> source(4, 1.0F);
  std::vector<float> seen;
  simt::run({.threads = 32, .shared_bytes = 48}, [&] {
    if (ptx::thread() != 0) return;
    for (const std::uint32_t bytes : {8U, 0U, 16U}) {
      ptx::copy_async(bytes == 8 ? 0 : 16 + bytes, source.data(), bytes);
      ptx::commit_copies();
    }
    ptx::wait_copies(1);
    for (const std::uint32_t at : {0U, 4U, 8U, 16U, 32U}) seen.push_back(ptx::load_shared(at));
  });
  EXPECT_EQ(seen[0], 1);
  EXPECT_EQ(seen[1], 1);
  EXPECT_EQ(seen[2], 0);
  EXPECT_EQ(seen[3], 0);
  EXPECT_TRUE(std::isnan(seen[4]));
}

TEST(Simt, RefusesWhatHardwareWouldPunish) {
  const simt::Launch launch{.threads = 64, .shared_bytes = 64};
  EXPECT_EQ(fault_of(launch, [] { ptx::store_shared(60, 1.0F); }), "none");
  EXPECT_THAT(fault_of(launch, [] { ptx::store_shared(64, 1.0F); }),
              testing::HasSubstr("4 bytes of shared memory at 64"));
  EXPECT_THAT(fault_of(launch, [] { ptx::store_shared(2, 1.0F); }), testing::HasSubstr("aligned"));
  EXPECT_THAT(fault_of(launch,
                       [] {
                         if (ptx::thread() != 5) ptx::sync_block();
                       }),
              testing::HasSubstr("deadlock"));
  EXPECT_THAT(fault_of(launch,
                       [] {
                         if (ptx::thread() < 16) {
                           (void)ptx::shuffle_xor(1, 1);
                         } else {
                           ptx::sync_warp();
                         }
                       }),
              testing::HasSubstr("where others do"));
}

TEST(Simt, IndependentThreadsAllRunAndMayNotMeet) {
  std::array<unsigned, 2 * 3 * 32> runs{};
  const simt::Launch launch{.blocks = 2, .blocks_y = 3, .threads = 32, .independent = true};
  simt::run(launch, [&] {
    const unsigned block = ptx::block_y() * 2 + ptx::block();
    ++runs[block * 32 + ptx::thread()];
  });
  EXPECT_THAT(runs, testing::Each(1));
  EXPECT_THAT(fault_of(launch, [] { ptx::sync_block(); }), testing::HasSubstr("independent"));
}

}  // namespace
}  // namespace tributary::test
