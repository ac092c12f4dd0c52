// The digest of a run: equal for equal attention outputs, in whatever order they arrive.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "core/base/hash.h"

namespace tributary {

/// Sum modulo 2^64, over all (sequence, position, layer), of a hash of these and of the bits of the
/// attention output before W_UV. Digests of parts add up.
class Digest {
 public:
  void add(std::int64_t tag, std::int64_t position, int layer, std::span<const float> output) {
    std::uint64_t hash = mix64(static_cast<std::uint64_t>(tag) + kGoldenGamma);
    hash = mix64(hash ^ (static_cast<std::uint64_t>(position) + kGoldenGamma));
    hash = mix64(hash ^ (static_cast<std::uint64_t>(layer) + kGoldenGamma));
    for (const float value : output) {
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * kGoldenGamma;
      hash ^= hash >> 29;
    }
    value_ += mix64(hash);
  }
  void add(const Digest& other) { value_ += other.value_; }
  void remove(const Digest& other) { value_ -= other.value_; }

  [[nodiscard]] std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0;
};

}  // namespace tributary
