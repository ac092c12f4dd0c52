// `tributary top`: a tier at a glance, in a terminal.
#pragma once

#include <string>

#include "core/base/option.h"
#include "deploy/service/protocol/credential_options.h"

namespace tributary {

struct TopOptions {
  std::string url = "http://127.0.0.1:7300";
  std::string token_file;
  std::string certificate_authority;
  int interval_ms = 1000;
  bool once = false;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(url, "URL", "", "The control plane");
    visit_credentials(v, token_file, certificate_authority);
    v(interval_ms, "--interval-ms", {1000, kMaxOptionMs},
      "Time between two pictures, of which rates are taken; pools report twice a second");
    v(once, "--once", "Print one picture after one interval, as where stdout is no terminal");
  }
};

/// Shows the tier every interval on a terminal, until `q` or a signal ends it; elsewhere, or with
/// `once`, prints it once, with the rates of one interval. Throws the tier's error, and
/// kUnavailable if it does not answer, except between two pictures of a terminal, which show that
/// instead.
void top(const TopOptions& options);

}  // namespace tributary
