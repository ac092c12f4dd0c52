// Collectives of one rank.
#include "comm/local/self_communicator.h"

#include <algorithm>

namespace tributary {
namespace {

Status check(std::string_view call, Deadline deadline) {
  if (!deadline.expired()) return {};
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("{}: the deadline passed before it began", call)};
}

}  // namespace

Status SelfCommunicator::do_broadcast(std::span<std::byte> /*data*/, int /*root*/,
                                      Deadline deadline) {
  return check("broadcast", deadline);
}

Status SelfCommunicator::do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                       std::span<const std::size_t> /*counts*/, Deadline deadline) {
  Status status = check("all_gather", deadline);
  if (status.ok()) std::ranges::copy(send, recv.begin());
  return status;
}

Status SelfCommunicator::do_all_to_all(std::span<const std::byte> send,
                                       std::span<const std::size_t> send_counts,
                                       std::span<std::byte> recv,
                                       std::span<const std::size_t> recv_counts,
                                       Deadline deadline) {
  if (send_counts[0] != recv_counts[0]) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("all_to_all: rank 0 sends {} bytes to itself, which expects {}",
                        send_counts[0], recv_counts[0])};
  }
  Status status = check("all_to_all", deadline);
  if (status.ok()) std::ranges::copy(send, recv.begin());
  return status;
}

}  // namespace tributary
