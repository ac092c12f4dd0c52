#include "core/base/elements.h"

#include <array>
#include <cstring>

#include "core/base/error.h"

namespace tributary {
namespace {

[[noreturn]] void refuse(DType type) {
  fail(ErrorCode::kInvalidArgument, "elements of {}, expected f32 or bf16", dtype_name(type));
}

}  // namespace

void store_elements(DType type, std::span<const float> values, std::byte* out) {
  switch (type) {
    case DType::kF32:
      std::memcpy(out, values.data(), values.size_bytes());
      return;
    case DType::kBF16:
      for (const float value : values) {
        const bf16 rounded = to_bf16(value);
        std::memcpy(out, &rounded, sizeof rounded);
        out += sizeof rounded;
      }
      return;
    case DType::kF64:
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI32:
      break;
  }
  refuse(type);
}

void load_elements(DType type, const std::byte* in, std::span<float> values) {
  switch (type) {
    case DType::kF32:
      std::memcpy(values.data(), in, values.size_bytes());
      return;
    case DType::kBF16:
      for (float& value : values) {
        bf16 stored;
        std::memcpy(&stored, in, sizeof stored);
        value = to_float(stored);
        in += sizeof stored;
      }
      return;
    case DType::kF64:
    case DType::kF8E4M3:
    case DType::kU8:
    case DType::kI32:
      break;
  }
  refuse(type);
}

void round_elements(DType type, std::span<float> values) {
  for (float& value : values) {
    std::array<std::byte, sizeof value> stored{};
    store_elements(type, std::span(&value, 1), stored.data());
    load_elements(type, stored.data(), std::span(&value, 1));
  }
}

}  // namespace tributary
