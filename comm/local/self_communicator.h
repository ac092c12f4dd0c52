// The communicator of a pool with one worker.
#pragma once

#include <memory>

#include "core/interface/communicator.h"

namespace tributary {

/// One rank, whose collectives are copies. A call fails only when its deadline has passed already
/// or its arguments are wrong.
[[nodiscard]] std::unique_ptr<Communicator> make_self_communicator();

}  // namespace tributary
