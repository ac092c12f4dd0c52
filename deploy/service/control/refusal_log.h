// Counts of refused requests for the log: one line of counts instead of a line per request.
#pragma once

#include <string>

#include "comm/http/http_server.h"

namespace tributary {

class RefusalLog {
 public:
  /// What was refused or closed since the call before, as text; empty: nothing.
  [[nodiscard]] std::string update(const HttpTraffic& traffic);

 private:
  HttpTraffic seen_;
};

}  // namespace tributary
