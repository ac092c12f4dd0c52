// Commits, truncations, renewals and the like of many sequences at once, each sent to its home.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

struct ControlRequest {
  wire::ControlOp op = wire::ControlOp::kCommit;
  const SequenceHandle* sequence = nullptr;
  std::int64_t length = 0;
  bool alone = false;             // in a message without others
  const Prefix* names = nullptr;  // of kName: of all blocks, those from number `length` on are sent
};
struct ControlOutcome {
  Status status;
  std::uint32_t epoch = 0;
  std::int64_t length = 0;
  std::int32_t home = 0;  // the sequence's, as far as is known now
};
/// Sends all requests before it waits for any answer. Returns one outcome per request, in order,
/// and never throws: a handle without a home, a lost worker and a worker's refusal are outcomes of
/// the sequences concerned.
[[nodiscard]] std::vector<ControlOutcome> control(WorkerConnections& connections,
                                                  std::span<const ControlRequest> requests,
                                                  Deadline deadline);

}  // namespace tributary
