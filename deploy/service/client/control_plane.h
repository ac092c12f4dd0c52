// The control plane as a client sees it: admission and the end of sequences, the tier's workers.
#pragma once

#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/sequencer/admit_request.h"
#include "deploy/service/protocol/admission.h"

namespace tributary {

/// Implementations: TierApi (over HTTP), LocalControl (deploy/local). Calls may come from any
/// thread. They throw the tier's error, kUnavailable, or kDeadlineExceeded.
class ControlPlane {
 public:
  ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;
  virtual ~ControlPlane() = default;

  /// Throws kPoolFull as a PoolFullError, with the tier's estimate. Of several requests with one
  /// idempotency key only the first admits.
  [[nodiscard]] virtual SequenceHandle admit(const AdmitRequest& wanted, Deadline deadline) = 0;
  [[nodiscard]] virtual SequenceHandle query(SequenceId id, Deadline deadline) = 0;
  /// `pool` is the pool that the admission named. If it is registered and does not know the
  /// sequence, the sequence has ended, even if the control plane has just started.
  virtual void free(SequenceId id, const std::string& pool, Deadline deadline) = 0;
  /// The addresses of all workers of the tier.
  [[nodiscard]] virtual std::vector<std::string> workers(Deadline deadline) = 0;
};

}  // namespace tributary
