#include "deploy/service/client/worker_absences.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tributary {

Duration pause_after(int failures) {
  constexpr std::chrono::milliseconds kFirst{5};
  constexpr std::chrono::milliseconds kLongest{320};
  constexpr int kDoublings = 6;
  return std::min(kFirst * (1 << std::min(failures, kDoublings)), kLongest);
}

void WorkerAbsences::connecting(const std::string& address, Time now) {
  absent_.try_emplace(address, Absence{.since = now, .why = {}});
}

Time WorkerAbsences::failed(const std::string& address, const Status& why, Time now) {
  connecting(address, now);
  Absence& absence = absent_.at(address);
  absence.why = why;
  absence.next_try = now + pause_after(absence.failures++);
  return absence.next_try;
}

std::optional<WorkerAbsences::Pause> WorkerAbsences::pause(const std::string& address,
                                                           Time now) const {
  const auto found = absent_.find(address);
  if (found == absent_.end() || now >= found->second.next_try) return std::nullopt;
  return Pause{found->second.next_try, found->second.why};
}

bool WorkerAbsences::failing(const std::string& address) const {
  const auto found = absent_.find(address);
  return found != absent_.end() && !found->second.why.ok();
}

bool WorkerAbsences::ask_now(const std::string& address) {
  return failing(address) && !std::exchange(absent_.at(address).asked, true);
}

std::string WorkerAbsences::complaint(const std::string& address, Time now) {
  const auto found = absent_.find(address);
  if (found == absent_.end() || found->second.told) return {};
  Absence& absence = found->second;
  if (now < absence.since + kPatience) return {};
  absence.told = true;
  return fmt::format(
      "{}; calls wait for it until their deadlines",
      absence.why.ok() ? fmt::format("worker {} does not answer", address) : absence.why.message());
}

}  // namespace tributary
