// The control plane over its HTTP interface.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/http/http_client.h"
#include "core/interface/clock.h"
#include "deploy/service/client/control_plane.h"

namespace tributary {

/// An error has the code that the tier's JSON names; kUnavailable and kDeadlineExceeded come from
/// HttpClient. A control plane that does not answer, or has no pool yet, may be starting: every
/// call, including the first, asks it again for kClientPatience. Every request here may be sent
/// twice (admissions by their key).
class TierApi final : public ControlPlane {
 public:
  /// Throws kInvalidArgument for an invalid URL.
  explicit TierApi(HttpClientConfig config);
  /// The pauses between tries are of this clock.
  TierApi(HttpClientConfig config, Clock& clock);

  [[nodiscard]] SequenceHandle admit(const AdmitRequest& wanted, Deadline deadline) override;
  [[nodiscard]] SequenceHandle query(SequenceId id, Deadline deadline) override;
  void free(SequenceId id, const std::string& pool, Deadline deadline) override;
  [[nodiscard]] std::vector<std::string> workers(Deadline deadline) override;

 private:
  [[nodiscard]] HttpResponse request(const std::string& method, const std::string& path,
                                     const std::string& body, Deadline deadline,
                                     const std::vector<HttpHeader>& headers = {});
  [[nodiscard]] HttpResponse request_once(const std::string& method, const std::string& path,
                                          const std::string& body, Deadline deadline,
                                          const std::vector<HttpHeader>& headers);

  HttpClientConfig config_;
  Clock& clock_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<HttpClient>> idle_;  // as many as there were calls at once
};

}  // namespace tributary
