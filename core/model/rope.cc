// RoPE frequencies, with YaRN where the model uses it.
#include "core/model/rope.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "core/base/error.h"

namespace tributary {
namespace {

/// Pairs below `low` keep their frequency, pairs above `high` are divided by the factor.
struct RampBounds {
  double low = 0;
  double high = 0;
};

/// The (real-valued) pair index that turns `turns` times over the original context length.
double correction_dim(double turns, const YarnScaling& yarn, double theta, int dim) {
  return dim * std::log(yarn.original_max_position_embeddings / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(theta));
}

RampBounds ramp_bounds(const YarnScaling& yarn, double theta, int dim) {
  RampBounds bounds{
      .low = std::max(std::floor(correction_dim(yarn.beta_fast, yarn, theta, dim)), 0.0),
      .high = std::min(std::ceil(correction_dim(yarn.beta_slow, yarn, theta, dim)), dim - 1.0)};
  // Also false for NaN. A ramp that runs backwards would interpolate the wrong pairs.
  if (!(bounds.low <= bounds.high)) {
    fail(ErrorCode::kInvalidArgument,
         "YaRN ramp is empty: beta_fast {} and beta_slow {} over {} positions give pairs {} .. {} "
         "of a rotary dimension of {}",
         yarn.beta_fast, yarn.beta_slow, yarn.original_max_position_embeddings, bounds.low,
         bounds.high, dim);
  }
  if (bounds.low == bounds.high) bounds.high += 0.001;  // as the reference avoids 0 / 0
  return bounds;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeConfig& config, int dim) {
  if (dim < 2 || dim % 2 != 0) {
    fail(ErrorCode::kInvalidArgument, "rotary dimension is {}, must be even and at least 2", dim);
  }
  // At theta = 1 every pair would turn equally fast, and YaRN would divide by ln 1.
  if (!(config.theta > 1) || !std::isfinite(config.theta)) {
    fail(ErrorCode::kInvalidArgument, "rope_theta is {}, must be finite and above 1", config.theta);
  }
  std::vector<double> frequencies(static_cast<std::size_t>(dim) / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(config.theta, -2.0 * static_cast<double>(i) / dim);
  }
  if (!config.yarn) return frequencies;

  const RampBounds bounds = ramp_bounds(*config.yarn, config.theta, dim);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp =
        std::clamp((static_cast<double>(i) - bounds.low) / (bounds.high - bounds.low), 0.0, 1.0);
    frequencies[i] = frequencies[i] * (1 - ramp) + frequencies[i] / config.yarn->factor * ramp;
  }
  return frequencies;
}

}  // namespace tributary
