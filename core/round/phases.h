// The phases of a round, and the time that each takes.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/deadline.h"

namespace tributary {

enum class Phase : std::uint8_t {
  kPlan,
  kProject,  // the client writes queries and new rows
  kQueryExchange,
  kAttend,
  kPartialExchange,
  kCombine,
};
inline constexpr std::array<std::string_view, 6> kPhaseNames{
    "plan", "project", "query_exchange", "attend", "partial_exchange", "combine"};
inline constexpr std::size_t kPhases = kPhaseNames.size();
/// Short names for tables: a terminal has few columns.
inline constexpr std::array<std::string_view, kPhases> kPhaseColumns{
    "plan", "project", "queries", "attend", "partials", "combine"};
static_assert(!kPhaseColumns.back().empty(), "one for each phase");
[[nodiscard]] constexpr std::string_view phase_name(Phase phase) noexcept {
  return kPhaseNames[static_cast<std::size_t>(phase)];
}
/// Microseconds per phase. The host measures them and waits at the end of each phase; with a
/// communicator that is ordered on the backend's stream, the device measures them.
using PhaseTimes = std::array<double, kPhases>;

/// Adds the time since its construction to one phase.
class PhaseTimer {
 public:
  PhaseTimer(PhaseTimes& times, Phase phase) : slot_(times[static_cast<std::size_t>(phase)]) {}
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  ~PhaseTimer() {
    slot_ += std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin_)
                 .count();
  }

 private:
  double& slot_;
  Time begin_ = std::chrono::steady_clock::now();
};

}  // namespace tributary
