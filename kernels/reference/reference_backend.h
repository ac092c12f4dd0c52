// The backend that the others are compared with: plain loops, float64 inside, fp32 outside, one
// thread. Each result is rounded once, so a partial state is practically the fp32 value nearest to
// the exact one. It is slow.
#pragma once

#include <memory>

#include "core/interface/backend.h"

namespace tributary {

/// Name: `reference`.
[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

}  // namespace tributary
