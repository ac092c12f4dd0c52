// The workload used when no trace is given. It uses only operations that IEEE 754 rounds exactly (+
// - * / sqrt, scaling by powers of two), so that every platform draws the same requests; the C
// library's exp and log may differ in the last bit between versions.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/hash.h"
#include "core/workload/trace.h"

namespace tributary {
namespace {

constexpr double kLn2 = 0.693147180559945309417;

/// Natural logarithm of a positive number, to a few units in the last place.
double portable_log(double x) {
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);  // exact; in [0.5, 1)
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  // ln m = 2 atanh s; |s| <= 0.172, so that s^23 / 23 is below 2^-60.
  const double s = (mantissa - 1) / (mantissa + 1);
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return 2 * s * sum + exponent * kLn2;
}

/// exp(x) for |x| < 700, to a few units in the last place.
double portable_exp(double x) {
  const double power = std::floor(x / kLn2 + 0.5);
  const double rest = x - power * kLn2;  // |rest| <= 0.35; rest^15 / 15! is below 2^-60
  double sum = 1;
  for (int k = 14; k >= 1; --k) sum = 1 + sum * rest / k;
  return std::ldexp(sum, static_cast<int>(power));
}

/// Counter-based draws of one request: a request does not depend on the number of requests.
class Draws {
 public:
  Draws(std::uint64_t seed, std::uint64_t request)
      : key_(mix64(mix64(seed + kGoldenGamma) + (request + 1) * kGoldenGamma)) {}

  /// In (0, 1): odd multiples of 2^-53.
  double uniform() {
    const std::uint64_t bits = mix64(key_ + ++counter_ * kGoldenGamma);
    return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
  }

  /// Standard normal, by Marsaglia's polar method.
  double normal() {
    for (;;) {
      const double u = 2 * uniform() - 1;
      const double v = 2 * uniform() - 1;
      const double r = u * u + v * v;
      if (r < 1 && r > 0) return u * std::sqrt(-2 * portable_log(r) / r);
    }
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

/// exp(N(ln median, sigma^2)), redrawn until it lies within [low, high].
struct LogNormalLength {
  double median;
  double sigma;
  double low;
  double high;

  std::int64_t draw(Draws& draws) const {
    for (;;) {
      const double length = std::floor(median * portable_exp(sigma * draws.normal()));
      if (length >= low && length <= high) return static_cast<std::int64_t>(length);
    }
  }
};

// Fitted to an hour of a production chat service (Mooncake's conversation trace: prompts of median
// 6,909, mean 12,035, 99th percentile 85,399, maximum 126,195; outputs of median 350, mean 343,
// maximum 2,000; 12,031 requests in 3,537 s).
constexpr LogNormalLength kPrompt = {.median = 7000, .sigma = 1.12, .low = 64, .high = 126000};
constexpr LogNormalLength kOutput = {.median = 300, .sigma = 0.55, .low = 1, .high = 2000};
constexpr double kMeanGapMs = 294;

}  // namespace

std::vector<TraceRequest> built_in_workload(std::size_t requests, std::uint64_t seed) {
  std::vector<TraceRequest> workload(requests);
  double now_ms = 0;
  for (std::size_t i = 0; i < requests; ++i) {
    Draws draws(seed, i);
    if (i > 0) now_ms += std::floor(-kMeanGapMs * portable_log(draws.uniform()));
    workload[i].timestamp_ms = now_ms;
    workload[i].input_length = kPrompt.draw(draws);
    workload[i].output_length = kOutput.draw(draws);
  }
  return workload;
}

}  // namespace tributary
