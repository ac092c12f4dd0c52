// A communicator of device memory for tests whose buffers are on the host: each collective goes
// through buffers of a backend.
#pragma once

#include <chrono>
#include <cstddef>
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
      : Communicator(inner.rank(), inner.size(), inner.members()),
        backend_(backend),
        inner_(inner) {}
  DeviceBuffers(Backend& backend, std::unique_ptr<Communicator> inner)
      : DeviceBuffers(backend, *inner) {
    owned_ = std::move(inner);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return inner_.name(); }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    const auto from = copy(call.send);
    const auto to = copy(call.recv);
    Collective on_device = call;
    on_device.send = {from->data(), call.send.size()};
    on_device.recv = {to->data(), call.recv.size()};
    Status status = inner_.run(on_device, deadline);
    if (status.ok()) status = inner_.complete(deadline);
    if (status.ok()) backend_.download(call.recv, to->data());
    return status;
  }
  void do_poison(const Status& reason) override { inner_.poison(reason); }
  Status do_look_for_failure() override { return inner_.look_for_failure(); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t generation) override {
    return std::make_unique<DeviceBuffers>(backend_, inner_.survivors(members, generation));
  }

 private:
  [[nodiscard]] std::unique_ptr<Buffer> copy(std::span<const std::byte> bytes) {
    auto buffer = backend_.allocate(bytes.size());
    backend_.upload(buffer->data(), bytes);
    backend_.synchronize(Deadline::after(std::chrono::seconds(60)));
    return buffer;
  }

  Backend& backend_;
  std::unique_ptr<Communicator> owned_;  // of survivors; null: the caller owns inner_
  Communicator& inner_;
};

}  // namespace tributary::testing_support
