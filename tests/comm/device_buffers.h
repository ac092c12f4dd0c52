// A communicator of device memory, for tests that have their buffers on the host: each collective
// through buffers of a backend.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary::testing_support {

/// Copies into the backend's memory, calls `inner`, waits for it, and copies back.
class DeviceBuffers final : public Communicator {
 public:
  DeviceBuffers(Backend& backend, Communicator& inner)
      : Communicator(inner.rank(), inner.size()), backend_(backend), inner_(inner) {}
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline deadline) override {
    const auto buffer = copy(data);
    Status status = inner_.broadcast({buffer->data(), data.size()}, root, deadline);
    if (status.ok()) status = inner_.complete(deadline);
    if (status.ok()) backend_.download(data, buffer->data());
    return status;
  }
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline deadline) override {
    const auto from = copy(send);
    const auto to = copy(recv);
    Status status =
        inner_.all_gather({from->data(), send.size()}, {to->data(), recv.size()}, counts, deadline);
    if (status.ok()) status = inner_.complete(deadline);
    if (status.ok()) backend_.download(recv, to->data());
    return status;
  }
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline deadline) override {
    const auto from = copy(send);
    const auto to = copy(recv);
    Status status = inner_.all_to_all({from->data(), send.size()}, send_counts,
                                      {to->data(), recv.size()}, recv_counts, deadline);
    if (status.ok()) status = inner_.complete(deadline);
    if (status.ok()) backend_.download(recv, to->data());
    return status;
  }
  void do_poison(const Status& reason) override { inner_.poison(reason); }
  Status do_look_for_failure() override { return inner_.look_for_failure(); }

 private:
  [[nodiscard]] std::unique_ptr<Buffer> copy(std::span<const std::byte> bytes) {
    auto buffer = backend_.allocate(bytes.size());
    backend_.upload(buffer->data(), bytes);
    backend_.synchronize(Deadline::after(std::chrono::seconds(60)));
    return buffer;
  }

  Backend& backend_;
  Communicator& inner_;
};

}  // namespace tributary::testing_support
