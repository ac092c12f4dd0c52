// The communicator between processes that mpirun started: nonblocking MPI collectives, polled
// against a deadline.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "comm/mpi/mpi_environment.h"
#include "core/interface/communicator.h"

namespace tributary {

/// All ranks of the environment, in an MPI communicator of its own.
///
/// Payload goes through staging memory of this object, which grows to the largest call seen (about
/// the size of `recv`, for all_to_all plus `send`): MPI keeps using the memory of a collective that
/// missed its deadline, and cannot be told to stop, while the caller's buffers are free again when
/// the call returns. After a failure staging is kept until MPI is finalised; so is the underlying
/// MPI communicator, always (a program is to make few).
///
/// Blocks travel in units of 64 bytes, so one call carries up to 128 GiB (beyond: kTooLarge).
/// A waiting rank polls, yielding, for a while that grows with the size of the call, then sleeps
/// between polls. A failure is sent to the peers, who fail with it in their next poll; where that
/// message cannot pass they end at their deadlines. A collective may have completed on some ranks
/// when it fails on others. MPI does not check that the ranks' counts match.
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

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
