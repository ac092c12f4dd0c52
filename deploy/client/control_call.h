// Commits, truncations and renewals of many sequences at once, each sent to its home.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "deploy/client/tier_client.h"
#include "deploy/client/worker_connections.h"

namespace tributary {

/// The worker that answers for the sequence. Throws kInvalidArgument for a handle whose home has no
/// address.
[[nodiscard]] const std::string& home_address(const SequenceHandle& sequence);
/// Throws kInvalidArgument for a handle without that rank.
[[nodiscard]] const std::string& rank_address(const SequenceHandle& sequence, int rank);
[[nodiscard]] WorkerConnections::Greeting greeting_for(const SequenceHandle& sequence,
                                                       const std::string& address);

struct ControlRequest {
  wire::ControlOp op = wire::ControlOp::kCommit;
  const SequenceHandle* sequence = nullptr;
  std::int64_t length = 0;
};
struct ControlOutcome {
  Status status;
  std::uint32_t epoch = 0;
  std::int64_t length = 0;
};
/// Sends all before it waits for any. One outcome a request, in order; never throws for what a
/// worker answers or for one that is lost.
[[nodiscard]] std::vector<ControlOutcome> control(WorkerConnections& connections,
                                                  std::span<const ControlRequest> requests,
                                                  Deadline deadline);

}  // namespace tributary
