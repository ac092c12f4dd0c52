// The communicator between GPUs: NCCL, bootstrapped by a communicator of host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "core/interface/communicator.h"

namespace tributary {

/// The ranks of `bootstrap`, each with a device of its own: NCCL refuses two ranks on one.
///
/// Buffers are memory of the rank's device, or memory that the device can read and write as its own
/// (page-locked host memory); blocks of both kinds may be mixed in one call. What fills them must
/// be complete when a call begins (Backend::synchronize), and what is received is there when it
/// returns. Calls run on a stream of this object.
///
/// NCCL is used without blocking: every call polls for its end, for errors that NCCL met on the
/// way, for failures of `bootstrap`, and for its deadline. Whatever fails aborts NCCL's
/// communicator, which frees the device from a collective whose peers do not come, and poisons
/// `bootstrap`, through which the peers learn of it. Blocks whose sizes do not match between ranks
/// are not found out by NCCL: both ends wait, up to their deadlines.
class NcclCommunicator final : public Communicator {
 public:
  /// A collective call; `device` as CUDA counts it. Throws kUnavailable where NCCL cannot be
  /// opened, kWorkerFailed with NCCL's words, kDeadlineExceeded when not all ranks came. A rank
  /// that throws before NCCL's own start tells the others, which throw the same. `bootstrap`
  /// outlives it, and its calls may come in between, from the same thread.
  NcclCommunicator(Communicator& bootstrap, int device, Deadline deadline);
  ~NcclCommunicator() override;
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override;
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override;
  void do_poison(const Status& reason) override;
  Status do_look_for_failure() override { return bootstrap_.look_for_failure(); }

 private:
  class Impl;
  Communicator& bootstrap_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
