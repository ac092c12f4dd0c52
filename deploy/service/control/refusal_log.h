// What the server refused, for the log: a line of counts where there would else be one a request.
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
