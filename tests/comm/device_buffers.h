// A communicator of device memory for tests whose buffers are on the host: each collective goes
// through buffers of a backend.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

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
  Status do_collective(const Collective& call, Deadline deadline) override {
    const OnDevice buffers = copies_of(call);
    return take(call, buffers, inner_.run(buffers.call, deadline), deadline);
  }
  Status do_begin(const Collective& call, Deadline deadline) override {
    begun_.push_back(copies_of(call));
    return inner_.begin(begun_.back().call, deadline);
  }
  Status do_end(const Collective& call, Deadline deadline) override {
    const OnDevice buffers = std::move(begun_.front());
    begun_.pop_front();
    return take(call, buffers, inner_.end(deadline), deadline);
  }
  void do_poison(const Status& reason) override { inner_.poison(reason); }
  Status do_look_for_failure() override { return inner_.look_for_failure(); }

 private:
  struct OnDevice {
    std::unique_ptr<Buffer> send, recv;
    Collective call;
  };
  [[nodiscard]] OnDevice copies_of(const Collective& call) {
    OnDevice copies{.send = copy(call.send), .recv = copy(call.recv), .call = call};
    copies.call.send = {copies.send->data(), call.send.size()};
    copies.call.recv = {copies.recv->data(), call.recv.size()};
    return copies;
  }
  /// What has come, where `status` says that it has.
  Status take(const Collective& call, const OnDevice& buffers, Status status, Deadline deadline) {
    if (status.ok()) status = inner_.complete(deadline);
    if (status.ok()) backend_.download(call.recv, buffers.recv->data());
    return status;
  }
  [[nodiscard]] std::unique_ptr<Buffer> copy(std::span<const std::byte> bytes) {
    auto buffer = backend_.allocate(bytes.size());
    backend_.upload(buffer->data(), bytes);
    backend_.synchronize(Deadline::after(std::chrono::seconds(60)));
    return buffer;
  }

  Backend& backend_;
  Communicator& inner_;
  std::deque<OnDevice> begun_;
};

}  // namespace tributary::testing_support
