// The tier's HTTP interface as a client sees it: admission and the end of sequences.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/http/http_client.h"
#include "core/base/deadline.h"
#include "core/cache/sequence_table.h"
#include "core/placement/placement.h"
#include "deploy/tier/admission_answer.h"

namespace tributary {

/// Calls may come from any thread. They throw what the tier answered with, as the code that its
/// JSON names; kUnavailable and kDeadlineExceeded as HttpClient. A control plane that is not there,
/// or has no pool yet, is asked again for kPatience, by the first call too: it may be starting.
/// Every request here may be asked twice (admissions by their key).
class TierApi {
 public:
  /// For a control plane to be started, and for its pools to register: they try every second.
  static constexpr std::chrono::seconds kPatience{5};

  /// Throws kInvalidArgument for a URL that is none.
  explicit TierApi(HttpClientConfig config);

  struct Admission {
    std::int64_t prompt_tokens = 0;
    std::int64_t max_new_tokens = 0;
    SpreadPolicy spread = SpreadPolicy::kAuto;
    std::string idempotency_key;
  };
  /// Where kPoolFull is thrown, `retry_after` is what the tier says.
  [[nodiscard]] AdmissionAnswer admit(const Admission& admission, Deadline deadline,
                                      std::chrono::milliseconds& retry_after);
  [[nodiscard]] AdmissionAnswer query(SequenceId id, Deadline deadline);
  void free(SequenceId id, Deadline deadline);

 private:
  [[nodiscard]] HttpResponse request(const std::string& method, const std::string& path,
                                     const std::string& body, Deadline deadline,
                                     const std::vector<HttpHeader>& headers = {});
  [[nodiscard]] HttpResponse request_once(const std::string& method, const std::string& path,
                                          const std::string& body, Deadline deadline,
                                          const std::vector<HttpHeader>& headers);

  HttpClientConfig config_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<HttpClient>> idle_;  // as many as there were calls at once
};

}  // namespace tributary
