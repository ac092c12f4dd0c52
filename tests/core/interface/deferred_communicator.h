// A communicator that is ordered with a backend's work, on machines without a device: another
// communicator, whose collectives wait in the queue of a deferred backend.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/communicator.h"
#include "tests/core/interface/deferred_queue.h"

namespace tributary::test {

/// A collective that fails ends the later ones. The backend's next wait does the rest of the queue,
/// as on a device whose communicator was aborted; until then it outlives its survivors.
class DeferredCommunicator final : public Communicator {
 public:
  /// Both arguments outlive it.
  DeferredCommunicator(Communicator& inner, DeferredQueue& queue)
      : Communicator(inner.rank(), inner.size(), inner.members()), inner_(inner), queue_(queue) {}
  DeferredCommunicator(std::unique_ptr<Communicator> inner, DeferredQueue& queue)
      : DeferredCommunicator(*inner, queue) {
    owned_ = std::move(inner);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "deferred"; }
  [[nodiscard]] bool on_stream() const noexcept override { return true; }

  /// The collective after the next `count` fails with `reason` when its turn comes.
  void fail_after(int count, const Status& reason) {
    until_failure_ = count;
    reason_ = reason;
  }

 protected:
  Status do_collective(const Collective& call, Deadline /*deadline*/) override {
    // The caller's counts are valid during this call only.
    queue_.add([this, call, sent = copy(call.send_counts),
                received = copy(call.recv_counts)](Deadline deadline) {
      if (until_failure_-- == 0) inner_.poison(reason_);
      Collective late = call;
      late.send_counts = sent;
      late.recv_counts = received;
      const Status status = inner_.run(late, deadline);
      if (first_.ok()) first_ = status;
    });
    return {};
  }
  /// The backend's synchronize() reports what the backend's own work throws.
  Status do_complete(Deadline deadline) override {
    queue_.drain(deadline, [this] { return !first_.ok(); });
    return first_;
  }
  void do_poison(const Status& reason) override { inner_.poison(reason); }
  Status do_look_for_failure() override { return inner_.look_for_failure(); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t generation) override {
    return std::make_unique<DeferredCommunicator>(inner_.survivors(members, generation), queue_);
  }

 private:
  static std::vector<std::size_t> copy(std::span<const std::size_t> counts) {
    return {counts.begin(), counts.end()};
  }

  std::unique_ptr<Communicator> owned_;  // of survivors; null: the caller owns inner_
  Communicator& inner_;
  DeferredQueue& queue_;
  Status first_;
  Status reason_;
  int until_failure_ = -1;
};

}  // namespace tributary::test
