// The communicator between GPUs: NCCL, bootstrapped by a communicator of host memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "core/interface/communicator.h"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace tributary {

/// The ranks of `bootstrap`, each with a device of its own: NCCL refuses two ranks on one.
///
/// Buffers are memory of the rank's device, or memory that the device can read and write as its own
/// (page-locked host memory); blocks of both kinds may be mixed in one call.
///
/// On a given stream (on_stream), that of the backend, a call returns when NCCL has taken it in,
/// for which the first ones wait for their peers, and complete() waits for the stream. On a stream
/// of its own, what fills buffers must be complete when a call begins (Backend::synchronize), and
/// what is received is there when it returns.
///
/// NCCL is used without blocking: every wait polls for its end, for errors that NCCL met on the
/// way, for failures of `bootstrap`, and for its deadline. Whatever fails aborts NCCL's
/// communicator, which frees the device from a collective whose peers do not come, and poisons
/// `bootstrap`, through which the peers learn of it. Blocks whose sizes do not match between ranks
/// are not found out by NCCL: both ends wait, up to their deadlines.
class NcclCommunicator final : public Communicator {
 public:
  /// A collective call; `device` as CUDA counts it. Throws kUnavailable where NCCL cannot be
  /// opened, kWorkerFailed with NCCL's words, kDeadlineExceeded when not all ranks came. A rank
  /// that throws poisons `bootstrap`, through which the others learn of it and throw the same.
  /// `bootstrap` outlives it, and its calls may come in between, from the same thread. So does
  /// `stream`, of the same device and never destroyed here; null: one of its own.
  NcclCommunicator(Communicator& bootstrap, int device, Deadline deadline,
                   CUstream_st* stream = nullptr);
  ~NcclCommunicator() override;
  [[nodiscard]] std::string_view name() const noexcept override { return "nccl"; }
  [[nodiscard]] bool on_stream() const noexcept override;

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override;
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override;
  Status do_complete(Deadline deadline) override;
  void do_poison(const Status& reason) override;
  Status do_look_for_failure() override { return bootstrap_.look_for_failure(); }

 private:
  class Impl;
  Communicator& bootstrap_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
