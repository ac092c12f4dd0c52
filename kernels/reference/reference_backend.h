// The backend to judge the others by: plain loops, float64 inside, fp32 outside, one thread. Each
// result is rounded once, so that a partial state here is the nearest fp32 value of the exact one
// for all practical purposes. Slow.
#pragma once

#include <memory>

#include "core/interface/backend.h"

namespace tributary {

/// Name: `reference`.
[[nodiscard]] std::unique_ptr<Backend> make_reference_backend();

}  // namespace tributary
