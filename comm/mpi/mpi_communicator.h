// The communicator between processes that mpirun started: nonblocking MPI messages, polled against
// a deadline.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "comm/mpi/mpi_environment.h"
#include "core/interface/communicator.h"

namespace tributary {

/// All ranks of the environment, in an MPI communicator of its own (which is kept until MPI is
/// finalised: a program is to make few).
///
/// Blocks travel as nonblocking messages between pairs of ranks, in pieces through staging memory
/// of this object (2 x 128 KiB per block at most), so that the caller's buffers are free when a
/// call returns, even though MPI goes on with the messages of a call that missed its deadline. A
/// waiting rank polls, soon yields, and after 0.5 ms without news sleeps between polls.
///
/// Ranks whose calls do not match (another collective, another position in the series) end at
/// their deadlines; blocks whose sizes do not match are kInvalidArgument at the receiver. The rank
/// that fails tells its peers, who fail with its cause in their next poll; where that news cannot
/// pass they end at their deadlines. A call may have completed on some ranks when it fails on
/// others: it ends when all that this rank sends has left and all that it receives is here.
class MpiCommunicator final : public Communicator {
 public:
  /// Every rank constructs its communicators in the same order. Throws kDeadlineExceeded when not
  /// all ranks came, kWorkerFailed when MPI reports an error. Destroyed before the environment.
  MpiCommunicator(const MpiEnvironment& environment, Deadline deadline);
  ~MpiCommunicator() override;
  [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override;
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override;
  void do_poison(const Status& reason) override;
  Status do_look_for_failure() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
