// The workers of a pool check before they start that their configurations are equal.
#pragma once

#include <string_view>

#include "core/base/error.h"
#include "core/interface/communicator.h"
#include "core/pool/pool_worker.h"

namespace tributary {

/// Throws kInvalidArgument for a shape that no attention can have. A cache checks the rest when it
/// is constructed.
void check_attention_shape(const AttentionShape& shape);

/// Throws kFailedPrecondition if `exchange` does not take the backend's memory, kInvalidArgument if
/// its ranks differ from the communicator's.
void check_exchange(const Backend& backend, const Communicator& communicator,
                    const Communicator& exchange);

/// Called by all ranks together; each brings its configuration, the name of its backend, and how
/// its own set-up went. Every rank throws the same error: that of the first rank whose set-up
/// failed, else kInvalidArgument naming the first difference and the two ranks.
void handshake(const WorkerConfig& config, std::string_view backend, const Status& set_up,
               Communicator& communicator, Deadline deadline);

}  // namespace tributary
