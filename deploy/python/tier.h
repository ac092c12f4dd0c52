// A tier's client as Python's objects share it.
#pragma once

#include <memory>

#include "deploy/local/local_pool.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {

/// Shared by a Client and its sequences; the last to go ends it, without the interpreter's lock.
using SharedTier = std::shared_ptr<TierClient>;

/// `pool`: what the client is of, which lives as long; null: a service.
[[nodiscard]] SharedTier share_tier(std::unique_ptr<TierClient> client,
                                    std::shared_ptr<LocalPool> pool = {});

/// Throws kFailedPrecondition for none (its pool was closed), and in another process than the one
/// that made it: os.fork() takes none of its threads along.
[[nodiscard]] TierClient& usable(const SharedTier& tier);

}  // namespace tributary::python
