#include "core/model/scaling_keys.h"

#include <cmath>

#include "core/base/error.h"

namespace tributary {
namespace {

/// Relative difference up to which a stated softmax_scale agrees. One that went through fp32 is off
/// by 2^-24; the smallest possible mistake (mscale left out) is off by far more.
constexpr double kSoftmaxScaleTolerance = 1e-6;

}  // namespace

std::optional<ConfigKeys> find_scaling(const ConfigKeys& config) {
  const bool old_style = config.find("rope_scaling") != nullptr;
  const bool new_style = config.find("rope_parameters") != nullptr;
  if (old_style && new_style) {
    fail(ErrorCode::kMalformedInput, "{}: both rope_scaling and rope_parameters are given",
         config.where());
  }
  if (!old_style && !new_style) return {};
  const char* key = old_style ? "rope_scaling" : "rope_parameters";
  return ConfigKeys(config.require(key), config.where() + ": " + key);
}

std::string scaling_type(const ConfigKeys& scaling) {
  const bool has_type = scaling.find("type") != nullptr;
  const bool has_rope_type = scaling.find("rope_type") != nullptr;
  if (!has_type && !has_rope_type) return "default";
  std::string type = scaling.text(has_type ? "type" : "rope_type");
  if (has_type && has_rope_type && scaling.text("rope_type") != type) {
    fail(ErrorCode::kMalformedInput, "{}: type is {} and rope_type {}", scaling.where(),
         shown(scaling.require("type")), shown(scaling.require("rope_type")));
  }
  return type;
}

void check_stated_scale(const ConfigKeys& config, double computed) {
  if (config.find("softmax_scale") == nullptr) return;
  const double stated = config.number("softmax_scale");
  if (!(std::abs(stated - computed) <= kSoftmaxScaleTolerance * computed)) {
    fail(ErrorCode::kMalformedInput, "{}: softmax_scale is {}, but the other values give {}",
         config.where(), stated, computed);
  }
}

void check_stated_head_dim(const ConfigKeys& config, int qk_head_dim) {
  const int stated = config.integer("qk_head_dim", qk_head_dim);
  if (stated != qk_head_dim) {
    fail(ErrorCode::kMalformedInput,
         "{}: qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}", config.where(),
         stated, qk_head_dim);
  }
}

}  // namespace tributary
