// Weighted samples and their exact quantiles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tributary {

/// All zeros if there is no sample.
struct Distribution {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;

  friend bool operator==(const Distribution&, const Distribution&) = default;
};

/// Keeps every sample, 16 bytes each.
class Samples {
 public:
  /// Adds a value that occurred `weight` times. A weight of 0 adds nothing.
  void add(double value, double weight = 1) {
    if (weight > 0) samples_.push_back({value, weight});
  }

  /// Quantile q is the smallest value that at least a share q of the weight does not exceed
  /// (nearest rank).
  [[nodiscard]] Distribution distribution() {
    if (samples_.empty()) return {};
    std::sort(samples_.begin(), samples_.end(),
              [](const Sample& a, const Sample& b) { return a.value < b.value; });
    double weight = 0;
    double sum = 0;
    for (const Sample& s : samples_) {
      weight += s.weight;
      sum += s.weight * s.value;
    }
    const auto quantile = [&](double q) {
      double below = 0;
      for (const Sample& s : samples_) {
        below += s.weight;
        if (below >= q * weight) return s.value;
      }
      return samples_.back().value;
    };
    return {.mean = sum / weight,
            .p50 = quantile(0.5),
            .p90 = quantile(0.9),
            .p99 = quantile(0.99),
            .max = samples_.back().value};
  }

 private:
  struct Sample {
    double value, weight;
  };
  std::vector<Sample> samples_;
};

}  // namespace tributary
