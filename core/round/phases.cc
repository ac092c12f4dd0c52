#include "core/round/phases.h"

namespace tributary {

std::string_view phase_name(Phase phase) noexcept {
  switch (phase) {
    case Phase::kPlan:
      return "plan";
    case Phase::kProject:
      return "project";
    case Phase::kQueryExchange:
      return "query_exchange";
    case Phase::kAttend:
      return "attend";
    case Phase::kPartialExchange:
      return "partial_exchange";
    case Phase::kCombine:
      return "combine";
  }
  return "unknown";
}

}  // namespace tributary
