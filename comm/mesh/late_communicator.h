// The communicator of a process that comes in the place of a lost rank. Internal to comm/mesh.
#pragma once

#include <memory>

#include "core/interface/communicator.h"

namespace tributary::mesh {

/// Seems to be of all ranks. It makes the calls of a start with rank 0 alone, which answers for the
/// others (StartRecord), and is good for nothing else but survivors(). `pair`: of rank 0 and this.
[[nodiscard]] std::unique_ptr<Communicator> make_late_communicator(
    std::unique_ptr<Communicator> pair, Clock& clock);

}  // namespace tributary::mesh
