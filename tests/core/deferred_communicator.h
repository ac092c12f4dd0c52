// A communicator that is ordered with a backend's work, on machines without a device: another
// communicator, whose collectives wait in the queue of a deferred backend.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/communicator.h"
#include "tests/core/deferred_queue.h"

namespace tributary::test {

/// A collective that fails ends those behind it. The rest of the queue is for the backend's next
/// wait, as on a device whose communicator was aborted.
class DeferredCommunicator final : public Communicator {
 public:
  /// Both outlive it.
  DeferredCommunicator(Communicator& inner, DeferredQueue& queue)
      : Communicator(inner.rank(), inner.size()), inner_(inner), queue_(queue) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "deferred"; }
  [[nodiscard]] bool on_stream() const noexcept override { return true; }

  /// The collective after the next `count` fails with `reason` when its turn comes.
  void fail_after(int count, const Status& reason) {
    until_failure_ = count;
    reason_ = reason;
  }

 protected:
  Status do_broadcast(std::span<std::byte> data, int root, Deadline /*deadline*/) override {
    add([this, data, root](Deadline deadline) { return inner_.broadcast(data, root, deadline); });
    return {};
  }
  Status do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                       std::span<const std::size_t> counts, Deadline /*deadline*/) override {
    add([this, send, recv, own = std::vector(counts.begin(), counts.end())](Deadline deadline) {
      return inner_.all_gather(send, recv, own, deadline);
    });
    return {};
  }
  Status do_all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                       std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                       Deadline /*deadline*/) override {
    add([this, send, recv, sent = std::vector(send_counts.begin(), send_counts.end()),
         received = std::vector(recv_counts.begin(), recv_counts.end())](Deadline deadline) {
      return inner_.all_to_all(send, sent, recv, received, deadline);
    });
    return {};
  }
  /// What the backend's own work throws is for its synchronize() to tell.
  Status do_complete(Deadline deadline) override {
    queue_.drain(deadline, [this] { return !first_.ok(); });
    return first_;
  }
  void do_poison(const Status& reason) override { inner_.poison(reason); }
  Status do_look_for_failure() override { return inner_.look_for_failure(); }

 private:
  template <typename Call>
  void add(Call call) {
    queue_.add([this, call = std::move(call)](Deadline deadline) {
      if (until_failure_-- == 0) inner_.poison(reason_);
      const Status status = call(deadline);
      if (first_.ok()) first_ = status;
    });
  }

  Communicator& inner_;
  DeferredQueue& queue_;
  Status first_;
  Status reason_;
  int until_failure_ = -1;
};

}  // namespace tributary::test
