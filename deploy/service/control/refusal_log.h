// Counts of refused requests for the log: one line of counts instead of a line per request.
#pragma once

#include <string>

#include "comm/http/http_server.h"

namespace tributary {

class RefusalLog {
 public:
  /// A text on the requests and connections refused or closed since the call before; empty if there
  /// were none.
  [[nodiscard]] std::string update(const HttpTraffic& traffic);

 private:
  HttpTraffic seen_;
};

}  // namespace tributary
