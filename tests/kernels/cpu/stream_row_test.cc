// A row stored past the caches is the row, and nothing beside it changes.
#include "kernels/cpu/stream_row.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <vector>

namespace tributary::cpu {
namespace {

TEST(StreamRow, StoresEveryByteOfAnySizeAtAnyPlace) {
  constexpr std::size_t kMost = 1200;
  constexpr std::byte kGuard{0xee};
  std::vector<std::byte> source(kMost + 16);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  alignas(64) std::array<std::byte, kMost + 64> memory{};
  for (const std::size_t bytes : {1, 15, 16, 17, 48, 64, 100, 160, 1152}) {
    for (const std::size_t to : {0, 1, 2, 16, 32, 40}) {
      for (const std::size_t from : {0, 2, 16}) {
        memory.fill(kGuard);
        stream_row(memory.data() + to, source.data() + from, bytes);
        finish_rows();
        for (std::size_t i = 0; i < memory.size(); ++i) {
          const bool inside = i >= to && i < to + bytes;
          ASSERT_EQ(memory.at(i), inside ? source[from + i - to] : kGuard)
              << bytes << " bytes from " << from << " to " << to << ", byte " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tributary::cpu
