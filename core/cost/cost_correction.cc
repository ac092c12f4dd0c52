#include "core/cost/cost_correction.h"

#include <algorithm>
#include <cmath>

namespace tributary {
namespace {

/// Written so that NaN becomes 1.
double bounded(double factor) {
  if (!(factor > 0)) return 1;
  return std::clamp(factor, CostCorrection::kLeast, CostCorrection::kMost);
}

bool learn(double& factor, double predicted_us, double measured_us) {
  const bool counts = predicted_us >= CostCorrection::kShortestUs &&
                      measured_us >= CostCorrection::kShortestUs && std::isfinite(measured_us) &&
                      std::isfinite(predicted_us);
  if (!counts) return false;
  const double seen = bounded(measured_us / predicted_us);
  factor = bounded(factor * std::pow(seen / factor, CostCorrection::kWeight));
  return true;
}

}  // namespace

CostCorrection::CostCorrection(const CostFactors& start)
    : factors_{.attend = bounded(start.attend),
               .exchange = bounded(start.exchange),
               .combine = bounded(start.combine)} {}

void CostCorrection::observe(const WorkerTimes& predicted, const WorkerTimes& measured) {
  bool counts = learn(factors_.attend, predicted.attend_us, measured.attend_us);
  counts |= learn(factors_.exchange, predicted.queries_us + predicted.states_us,
                  measured.queries_us + measured.states_us);
  counts |= learn(factors_.combine, predicted.combine_us, measured.combine_us);
  observed_ += counts ? 1 : 0;
}

MachineCosts CostCorrection::corrected(MachineCosts costs) const {
  // A pool's rounds use weights at their leaves alone, in the time of attention.
  for (double* cost : {&costs.attend_us, &costs.attend_task_us, &costs.attend_byte_ns,
                       &costs.attend_gflop_us, &costs.weight_byte_ns, &costs.weight_gflop_us}) {
    *cost *= factors_.attend;
  }
  for (double* cost :
       {&costs.all_gather_message_us, &costs.all_gather_byte_ns, &costs.all_to_all_message_us,
        &costs.all_to_all_byte_ns, &costs.network_message_us, &costs.network_byte_ns}) {
    *cost *= factors_.exchange;
  }
  for (double* cost : {&costs.merge_us, &costs.merge_byte_ns}) *cost *= factors_.combine;
  return costs;
}

}  // namespace tributary
