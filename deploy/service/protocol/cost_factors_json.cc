#include "deploy/service/protocol/cost_factors_json.h"

#include "core/base/error.h"
#include "deploy/service/protocol/json_object.h"

namespace tributary {

using nlohmann::json;

namespace {

double take_factor(JsonObject& object, std::string_view field) {
  const double factor = object.number(field);
  // Written so that NaN is refused.
  if (!(factor >= CostCorrection::kLeast && factor <= CostCorrection::kMost)) {
    fail(ErrorCode::kMalformedInput, "{} is {}: not in {} .. {}", object.path(field), factor,
         CostCorrection::kLeast, CostCorrection::kMost);
  }
  return factor;
}

}  // namespace

json cost_factors_to_json(const CostFactors& factors) {
  return {{"attend", factors.attend}, {"exchange", factors.exchange}, {"combine", factors.combine}};
}

CostFactors cost_factors_from_json(const json& value, std::string_view what) {
  JsonObject object(value, what);
  CostFactors factors;
  factors.attend = take_factor(object, "attend");
  factors.exchange = take_factor(object, "exchange");
  factors.combine = take_factor(object, "combine");
  object.end();
  return factors;
}

}  // namespace tributary
