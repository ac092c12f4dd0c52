// The draws of a simulation's seed.
#pragma once

#include <cstdint>

#include "core/base/deadline.h"
#include "core/base/hash.h"

namespace tributary::test {

/// The same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(mix64(seed + 1)) {}
  [[nodiscard]] std::uint64_t draw() {
    state_ += kGoldenGamma;
    return mix64(state_);
  }
  /// 0 .. sides - 1.
  [[nodiscard]] std::int64_t roll(std::int64_t sides) {
    return static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(sides));
  }
  [[nodiscard]] std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + roll(high - low + 1);
  }
  [[nodiscard]] bool one_in(std::int64_t n) { return roll(n) == 0; }
  [[nodiscard]] Duration up_to(Duration most) { return Duration(roll(most.count())); }
  /// From -1 to 1.
  [[nodiscard]] float value() { return static_cast<float>(draw() >> 40) / float{1 << 23} - 1; }

 private:
  std::uint64_t state_;
};

}  // namespace tributary::test
