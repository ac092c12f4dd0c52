#include "core/model/fp8.h"

#include <cstdint>

#include "core/base/dtype.h"

namespace tributary::fp8 {
void encode(const RowLayout& layout, std::span<const float> values, std::byte* row) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    row[i] = static_cast<std::byte>(to_f8_e4m3(round_to_bf16(values[i]) / layout.format.scale));
  }
}

void decode(const RowLayout& layout, const std::byte* row, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = round_to_bf16(f8_e4m3_to_float(std::to_integer<std::uint8_t>(row[i])) *
                              layout.format.scale);
  }
}

}  // namespace tributary::fp8
