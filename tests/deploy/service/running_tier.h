// A decode tier started by the program itself (`tributary up`), for tests that speak its protocols
// byte by byte.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/http/http_message.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

class RunningTier {
 public:
  /// `tributary up --listen 127.0.0.1:0 FLAGS...` of $TRIBUTARY_PROGRAM; returns when it serves.
  explicit RunningTier(const std::vector<std::string>& flags);
  ~RunningTier();  // a clean stop, with a deadline
  RunningTier(const RunningTier&) = delete;
  RunningTier& operator=(const RunningTier&) = delete;

  [[nodiscard]] const std::string& url() const noexcept { return url_; }
  [[nodiscard]] HttpResponse http(const std::string& method, const std::string& path,
                                  const std::string& body = {}) const;
  [[nodiscard]] SequenceHandle admit(std::int64_t prompt_tokens, std::int64_t max_new_tokens) const;
  void free(SequenceId id) const;
  /// The sum of the samples of a metric whose line contains `label`.
  [[nodiscard]] double metric(const std::string& name, const std::string& label = {}) const;
  /// Waits until no page is used or reserved; false when that takes longer than `seconds`.
  [[nodiscard]] bool all_free_within(double seconds) const;

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string url_;
};

}  // namespace tributary
