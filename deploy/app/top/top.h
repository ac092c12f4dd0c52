// `tributary top`: a tier at a glance, in a terminal.
#pragma once

#include <string>

namespace tributary {

struct TopOptions {
  std::string url = "http://127.0.0.1:7300";  // of the control plane
  std::string token_file;
  std::string certificate_authority;
  int interval_ms = 1000;
  bool once = false;
};

/// Shows the tier every interval on a terminal, until the process is ended; elsewhere, or with
/// `once`, prints it once, with the rates of one interval. Throws the tier's error, and
/// kUnavailable if it does not answer, except between two pictures of a terminal, which show that
/// instead.
void top(const TopOptions& options);

}  // namespace tributary
