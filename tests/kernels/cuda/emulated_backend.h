// The CUDA backend's kernels as a backend on the host, so that they join the conformance suite of
// backends without a GPU: launched on emulated threads (emulation/simt.h), with the schedule and
// the choice of kernels of an sm_80. Products are cuBLASLt's on a GPU: here they are the
// reference's.
#pragma once

#include <memory>

#include "core/interface/backend.h"

namespace tributary::test {

[[nodiscard]] std::unique_ptr<Backend> make_emulated_backend();

}  // namespace tributary::test
