// Collectives on a backend's memory where no communicator takes its pointers: down to the host,
// through a communicator of host memory, and up again. For several workers on one GPU (NCCL refuses
// that), and wherever there is no NCCL.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary {

/// The ranks of `host`, with its failures: poison passes from one to the other. Buffers are the
/// backend's memory; the work that fills them was enqueued on the backend, and what is enqueued
/// after a call sees what was received. Calls of this and of `host` may alternate, from the
/// backend's thread. Both outlive it.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Backend& backend, Communicator& host);
  /// `staged/mpi`, ...
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override;
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override;
  void do_poison(const Status& reason) override { host_.poison(reason); }
  Status do_look_for_failure() override { return host_.look_for_failure(); }

 private:
  /// Copies `device` into send_.
  Status fetch(std::span<const std::byte> device, Deadline deadline);
  Status deliver(std::span<std::byte> device);

  Backend& backend_;
  Communicator& host_;
  std::string name_;
  std::vector<std::byte> send_, recv_;
};

}  // namespace tributary
