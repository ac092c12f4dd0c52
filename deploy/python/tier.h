// A tier's client as Python's objects share it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "deploy/local/local_pool.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {

/// Shared by a Client and its sequences; the last to go ends it, without the interpreter's lock.
using SharedTier = std::shared_ptr<TierClient>;

/// `pool`: what the client is of, which lives as long; null: a service.
[[nodiscard]] SharedTier share_tier(std::unique_ptr<TierClient> client,
                                    std::shared_ptr<LocalPool> pool = {});

/// Throws kFailedPrecondition for none (its pool was closed), in another process than the one that
/// made it (os.fork() takes none of its threads along), and where the interpreter ends.
[[nodiscard]] TierClient& usable(const SharedTier& tier);

/// For a call that waits: leaves the interpreter's lock to others, and is known to the end of the
/// interpreter.
class Unlocked {
 public:
  Unlocked() = default;
  /// Where the interpreter has ended meanwhile: does not return, and the thread sleeps until the
  /// process ends. To ask for the lock would end the thread, and with it the process.
  ~Unlocked() { come_back(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  static void come_back() noexcept;

  struct Counted {
    Counted() noexcept;
    ~Counted();
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
  };
  Counted counted_;  // goes last, with the lock
  nanobind::gil_scoped_release unlocked_;
};

/// Where the interpreter ends: no new calls, pools are closed, and calls end before threads that
/// the interpreter does not join are stopped in the middle of them. A call that goes on for too
/// long sleeps when it ends (~Unlocked).
void bind_end();

}  // namespace tributary::python
