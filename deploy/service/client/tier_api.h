// The tier's HTTP interface as a client sees it: admission and the end of sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/http/http_client.h"
#include "core/base/deadline.h"
#include "core/cache/sequence_table.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

/// Calls may come from any thread. They throw what the tier answered with, as the code that its
/// JSON names; kUnavailable and kDeadlineExceeded as HttpClient. A control plane that is not there,
/// or has no pool yet, is asked again for kClientPatience, by the first call too: it may be
/// starting.
/// Every request here may be asked twice (admissions by their key).
class TierApi {
 public:
  /// Throws kInvalidArgument for an invalid URL.
  explicit TierApi(HttpClientConfig config);

  /// kPoolFull is thrown as a PoolFullError, with the tier's estimate.
  [[nodiscard]] SequenceHandle admit(const AdmitRequest& wanted, Deadline deadline);
  [[nodiscard]] SequenceHandle query(SequenceId id, Deadline deadline);
  /// `pool` holds it, as its admission said: where that is registered and does not know the
  /// sequence, it has ended, also for a control plane that has just started.
  void free(SequenceId id, const std::string& pool, Deadline deadline);

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
