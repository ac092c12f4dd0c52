// What the workers of a pool make sure of before they begin: that they are equal.
#pragma once

#include <string_view>

#include "core/base/error.h"
#include "core/interface/communicator.h"
#include "core/pool/worker.h"

namespace tributary {

/// Throws kInvalidArgument for a shape that no attention can have; what a cache checks when it is
/// made is left to it.
void check_attention_shape(const AttentionShape& shape);

/// Throws kFailedPrecondition where `exchange` is not one that takes the backend's memory,
/// kInvalidArgument where its ranks are others than the communicator's.
void check_exchange(const Backend& backend, const Communicator& communicator,
                    const Communicator& exchange);

/// Called by all ranks together; each brings its configuration, the name of its backend, and how
/// its own set-up went. Every rank throws the same error: that of the first rank whose set-up
/// failed, else kInvalidArgument naming the first difference and the two ranks.
void handshake(const WorkerConfig& config, std::string_view backend, const Status& set_up,
               Communicator& communicator);

}  // namespace tributary
