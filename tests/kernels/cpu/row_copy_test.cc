// Rows of codes as the kernels see them: the values of the row's format, on every instruction set.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/fp8_ds_mla.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/row_gather.h"

namespace tributary::cpu {
namespace {

TEST(WidenCodes, EveryCodeTimesEveryKindOfScale) {
  // From where all products are normal to where some are subnormal, nothing or infinite.
  std::vector<float> scales{1.0F,      0x1p-22F,  0x1p118F,  0x1.fffffep118F,
                            0x1p119F,  0x1p127F,  0x1p-117F, 0x1.fffffep-118F,
                            0x1p-118F, 0x1p-130F, 0x1p-149F, 0.1F,
                            3e-4F,     1e-39F,    3e38F};
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {  // as a writer without powers of two has them
    scales.push_back(std::ldexp(1.0F + static_cast<float>(random() % (1U << 23)) * 0x1p-23F,
                                static_cast<int>(random() % 60) - 30));
  }
  for (const KernelTable* table : usable_kernel_tables()) {
    for (const float scale : scales) {
      // Two scales, the codes of the second not whole vectors.
      std::vector<std::uint8_t> codes(229);
      std::iota(codes.begin(), codes.end(), std::uint8_t{128});
      const float both[2] = {scale, 0.1F};
      std::vector<bf16> got(codes.size() + 1, bf16{0x5a5a});
      for (const bool second : {false, true}) {
        const float of_tiles[2] = {both[second ? 1 : 0], both[second ? 0 : 1]};
        table->widen_codes(codes.data(), reinterpret_cast<const std::byte*>(of_tiles), codes.size(),
                           got.data());
        for (std::size_t i = 0; i < codes.size(); ++i) {
          EXPECT_EQ(got[i].bits, to_bf16(f8_e4m3_to_float(codes[i]) * of_tiles[i / 128]).bits)
              << table->name << ", code " << int{codes[i]} << ", scale " << of_tiles[i / 128];
        }
        EXPECT_EQ(got.back().bits, 0x5a5a) << "nothing behind them is written";
      }
    }
  }
}

TEST(RowCopy, RowsOfCodesBecomeTheirValues) {
  std::mt19937 random(3);
  for (const RowLayout layout :
       {RowLayout{RowFormat::kFp8DsMla, 512, 64}, RowLayout{RowFormat::kFp8DsMla, 128, 2}}) {
    std::vector<std::byte> row(layout.bytes());
    for (std::byte& byte : row) byte = static_cast<std::byte>(random());
    const fp8_ds_mla::Parts parts(static_cast<std::size_t>(layout.kv_lora_rank),
                                  static_cast<std::size_t>(layout.qk_rope_head_dim));
    for (std::size_t at = parts.scales; at < parts.rope; at += sizeof(float)) {
      const float scale = 0x1p-8F + static_cast<float>(random() % 100);
      std::memcpy(row.data() + at, &scale, sizeof scale);
    }
    std::vector<float> values(layout.values());
    layout.decode(row.data(), values);
    const RowCopy copy(layout, usable_kernel_tables().front()->widen_codes);
    std::vector<bf16> got(values.size());
    ASSERT_EQ(copy.copied_bytes(), got.size() * sizeof(bf16));
    copy.copy(row.data(), reinterpret_cast<std::byte*>(got.data()));
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].bits, to_bf16(values[i]).bits) << i;
    }
  }
}

TEST(RowCopy, RowsOfCodesWithOneScaleBecomeTheirValues) {
  RowFormat format = RowFormat::kFp8;
  for (const float scale : {1.0F, 0.03F}) {
    format.scale = scale;
    // Whole vectors of codes or not.
    for (const RowLayout layout : {RowLayout{format, 512, 64}, RowLayout{format, 129, 1}}) {
      std::vector<std::byte> row(layout.bytes());
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(7 * i);
      std::vector<float> values(layout.values());
      layout.decode(row.data(), values);
      for (const KernelTable* table : usable_kernel_tables()) {
        const RowCopy copy(layout, table->widen_codes);
        std::vector<bf16> got(values.size());
        ASSERT_EQ(copy.copied_bytes(), got.size() * sizeof(bf16));
        copy.copy(row.data(), reinterpret_cast<std::byte*>(got.data()));
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].bits, to_bf16(values[i]).bits) << table->name << ", " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tributary::cpu
