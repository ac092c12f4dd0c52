// The workers to which there is no connection: when to try again, and whom to complain about. It
// does no input or output; times are passed in.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// The pause before the next try, after `failures` earlier ones: doubled from the first to the
/// longest. A worker that only had no place is reached at once, and one that is down for long costs
/// little.
[[nodiscard]] Duration pause_after(int failures);

/// An absence begins with the first try to connect, and ends with the welcome.
class WorkerAbsences {
 public:
  /// A worker that somebody has waited for this long is complained about, once.
  static constexpr std::chrono::milliseconds kPatience{2'000};

  void connecting(const std::string& address, Time now);
  /// A try, or a connection that served, has failed. Returns when to try again.
  Time failed(const std::string& address, const Status& why, Time now);
  /// It is there, or nobody waits for it any more.
  void end(const std::string& address) { absent_.erase(address); }

  struct Pause {
    Time until;
    Status why;  // the last failure
  };
  /// No value where a try may be made at `now`.
  [[nodiscard]] std::optional<Pause> pause(const std::string& address, Time now) const;
  /// The last try has failed.
  [[nodiscard]] bool failing(const std::string& address) const;
  /// Whether to ask at once if the pool is lost: once after the first failure.
  [[nodiscard]] bool ask_now(const std::string& address);
  /// The text for a worker that has been absent for a long time; empty where nothing is to be told.
  [[nodiscard]] std::string complaint(const std::string& address, Time now);

 private:
  struct Absence {
    Time since;
    Time next_try{};
    int failures = 0;
    Status why;
    bool asked = false;
    bool told = false;
  };
  std::map<std::string, Absence> absent_;  // by address
};

}  // namespace tributary
