// Counts durations or sizes in fixed buckets, as a metric histogram needs them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tributary {

/// Upper bounds in seconds of the buckets of every duration, 5 us to 10 s, six per factor of 10;
/// one more bucket lies above.
inline constexpr std::array<double, 39> kDurationBuckets{
    5e-6, 7e-6, 1e-5,   1.5e-5, 2e-5, 3e-5, 5e-5, 7e-5, 1e-4,   1.5e-4, 2e-4, 3e-4, 5e-4,
    7e-4, 1e-3, 1.5e-3, 2e-3,   3e-3, 5e-3, 7e-3, 1e-2, 1.5e-2, 2e-2,   3e-2, 5e-2, 7e-2,
    0.1,  0.15, 0.2,    0.3,    0.5,  0.7,  1,    1.5,  2,      3,      5,    7,    10};
/// Buckets for the number of sequences in a round.
inline constexpr std::array<double, 17> kBatchBuckets{1,  2,  3,  4,   6,   8,   12,   16,  24,
                                                      32, 48, 64, 128, 256, 512, 1024, 4096};

/// `Bounds` is one of the arrays above. Counts are per bucket, not cumulative.
template <const auto& Bounds>
class Histogram {
 public:
  static constexpr std::size_t kBuckets = Bounds.size() + 1;

  void observe(double value) noexcept {
    std::size_t i = 0;
    while (i < Bounds.size() && value > Bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
  void add(const Histogram& other) noexcept {
    for (std::size_t i = 0; i < kBuckets; ++i) counts[i] += other.counts[i];
    sum += other.sum;
  }
  [[nodiscard]] static std::span<const double> bounds() noexcept { return Bounds; }

  std::array<std::uint64_t, kBuckets> counts{};
  double sum = 0;
};
using DurationHistogram = Histogram<kDurationBuckets>;
using BatchHistogram = Histogram<kBatchBuckets>;

}  // namespace tributary
