// The addresses of a tier's workers, as its control plane has named them. Used only inside
// deploy/service/client.
#pragma once

#include <mutex>
#include <set>
#include <span>
#include <string>

#include "core/base/quote.h"
#include "deploy/service/client/control_plane.h"

namespace tributary {

/// A handle from elsewhere may name any address; a client connects to those of its tier alone. They
/// are kept, so that a control plane that is down stops no claim. Any thread.
class KnownWorkers {
 public:
  /// A handle that the control plane itself has given. One of a pool that is new to us brings the
  /// addresses of the whole tier, if the control plane still answers.
  void learn(const SequenceHandle& sequence, ControlPlane& control, Deadline deadline) {
    if (add(sequence.addresses)) static_cast<void>(status_of([&] { ask(control, deadline); }));
  }

  /// Asks the control plane about an address that is not known. Throws kPermissionDenied for one
  /// that it does not know either.
  void check(const SequenceHandle& sequence, ControlPlane& control, Deadline deadline) {
    if (find_stranger(sequence) == nullptr) return;
    ask(control, deadline);
    if (const std::string* stranger = find_stranger(sequence)) {
      fail(ErrorCode::kPermissionDenied, "sequence {}: no worker of this tier has the address {}",
           sequence.id, quote(*stranger));
    }
  }

 private:
  void ask(ControlPlane& control, Deadline deadline) { (void)add(control.workers(deadline)); }
  /// Whether one was new.
  [[nodiscard]] bool add(std::span<const std::string> addresses) {
    const std::scoped_lock lock(mutex_);
    const std::size_t before = addresses_.size();
    addresses_.insert(addresses.begin(), addresses.end());
    return addresses_.size() > before;
  }
  [[nodiscard]] const std::string* find_stranger(const SequenceHandle& sequence) const {
    const std::scoped_lock lock(mutex_);
    for (const std::string& address : sequence.addresses) {
      if (!addresses_.contains(address)) return &address;
    }
    return nullptr;
  }

  mutable std::mutex mutex_;
  std::set<std::string> addresses_;
};

}  // namespace tributary
