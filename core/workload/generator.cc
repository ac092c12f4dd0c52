#include "core/workload/generator.h"

#include "core/base/hash.h"

namespace tributary {
namespace {

enum class Stream : std::uint64_t { kRow = 1, kQuery = 2, kSelected = 3 };

std::uint64_t key_of(std::uint64_t seed, Stream stream, std::int64_t tag, int layer,
                     std::int64_t position) {
  std::uint64_t key = mix64(seed + kGoldenGamma);
  for (const std::uint64_t part :
       {static_cast<std::uint64_t>(stream), static_cast<std::uint64_t>(tag),
        static_cast<std::uint64_t>(layer), static_cast<std::uint64_t>(position)}) {
    key = mix64(key ^ (part + kGoldenGamma));
  }
  return key;
}

void fill(std::uint64_t key, float deviation, std::span<float> out) {
  // The sum of four uniforms on 0 .. 65535 has mean 131070 and deviation 65536 / sqrt(3).
  const float scale = deviation * static_cast<float>(1.7320508075688772 / 65536.0);
  std::uint64_t counter = key;
  for (float& value : out) {
    const std::uint64_t bits = mix64(counter);
    counter += kGoldenGamma;
    const auto sum = static_cast<std::int32_t>((bits & 0xffffU) + ((bits >> 16) & 0xffffU) +
                                               ((bits >> 32) & 0xffffU) + (bits >> 48));
    value = static_cast<float>(sum - 131070) * scale;
  }
}

}  // namespace

void TokenGenerator::row(std::int64_t tag, int layer, std::int64_t position,
                         std::span<float> out) const {
  fill(key_of(seed_, Stream::kRow, tag, layer, position), 1.0F, out);
}

void TokenGenerator::query(std::int64_t tag, int layer, std::int64_t position,
                           std::span<float> out) const {
  fill(key_of(seed_, Stream::kQuery, tag, layer, position), kQueryDeviation, out);
}

void TokenGenerator::selected(std::int64_t tag, int layer, std::int64_t position,
                              std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  const std::int64_t rows = position + 1;
  std::uint64_t counter = key_of(seed_, Stream::kSelected, tag, layer, position);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t chosen = i < rows ? i : -1;
    if (rows > count) {
      const std::int64_t begin = i * rows / count;
      const auto part = static_cast<std::uint64_t>((i + 1) * rows / count - begin);
      chosen = begin + static_cast<std::int64_t>(mix64(counter) % part);
      counter += kGoldenGamma;
    }
    out[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(chosen);
  }
}

}  // namespace tributary
