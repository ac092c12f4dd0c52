// The log of pools that are refused: each tries again every second.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "deploy/service/control/pool_registry.h"

namespace tributary {

class RefusedPools {
 public:
  /// Returns the line for a refusal of the pool at `remote` (HOST:PORT): at once for a reason that
  /// is new, then once a minute with the number of tries in between; empty otherwise.
  [[nodiscard]] std::string note(const std::string& remote, const std::string& why, Time now);

 private:
  struct Refusals {
    Time logged;
    int silent = 0;  // since then
  };
  std::map<std::string, Refusals> known_;  // by host and reason; bounded
};

}  // namespace tributary
