// A tier's client that Python's objects share.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "deploy/local/local_pool.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {

/// Shared by a Client and its sequences; the last one to go destroys it, without the interpreter's
/// lock.
using SharedTier = std::shared_ptr<TierClient>;

/// `pool`: the pool of the client, which is kept alive with it; null: a service.
[[nodiscard]] SharedTier share_tier(std::unique_ptr<TierClient> client,
                                    std::shared_ptr<LocalPool> pool = {});

/// Throws kFailedPrecondition for a missing tier (its pool was closed), in another process than the
/// one that made it (os.fork() does not copy its threads), and while the interpreter ends.
[[nodiscard]] TierClient& usable(const SharedTier& tier);

/// For a call that waits: releases the interpreter's lock, and lets the end of the interpreter know
/// of the call.
class Unlocked {
 public:
  Unlocked() = default;
  /// If the interpreter has ended meanwhile, does not return: the thread sleeps until the process
  /// ends. Asking for the lock would end the thread, and with it the process.
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

/// Registers for the end of the interpreter. Then new calls are refused, pools are closed, and
/// calls end before the interpreter stops threads that it does not join. A call that takes too long
/// sleeps when it ends (~Unlocked).
void bind_end();

}  // namespace tributary::python
