// Integer hashing with the same result everywhere: the base of counter-based generators and
// digests.
#pragma once

#include <cstdint>

namespace tributary {

/// A bijection of 64 bits in which every input bit moves every output bit: the finaliser of
/// splitmix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
/// mix64(0) == 0.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// 2^64 divided by the golden ratio, odd: the step between the inputs of consecutive draws.
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15U;

}  // namespace tributary
