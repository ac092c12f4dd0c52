#include "deploy/python/tier.h"

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <utility>

#include "core/base/error.h"

namespace tributary::python {
namespace {

struct End {
  std::shared_ptr<LocalPool> pool;
  pid_t process = getpid();

  void operator()(TierClient* tier) {
    if (process != getpid()) return;  // its threads are not here to be joined
    const nanobind::gil_scoped_release unlocked;
    delete tier;
    pool.reset();
  }
};

}  // namespace

SharedTier share_tier(std::unique_ptr<TierClient> client, std::shared_ptr<LocalPool> pool) {
  return {client.release(), End{.pool = std::move(pool)}};
}

TierClient& usable(const SharedTier& tier) {
  if (!tier) fail(ErrorCode::kFailedPrecondition, "the pool is closed");
  if (const End* end = std::get_deleter<End>(tier); end->process != getpid()) {
    fail(ErrorCode::kFailedPrecondition,
         "a client does not survive os.fork(): make one in the new process");
  }
  return *tier;
}

}  // namespace tributary::python
