// The communicator of a pool with one worker: collectives are copies.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/interface/communicator.h"

namespace tributary {

/// A call fails only when its deadline has passed already (kDeadlineExceeded) or its arguments are
/// wrong.
class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(/*rank=*/0, /*size=*/1) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "self"; }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override;
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override;
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override;
  void do_poison(const Status& /*reason*/) override {}
};

}  // namespace tributary
