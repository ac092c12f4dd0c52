// The attention backends of this build, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"

namespace tributary {

/// Names that make_backend accepts, preferred first: `cpu` (the best instruction set here),
/// `cpu/NAME` for each instruction set usable here, `cuda` (the first device) and `cuda/N` for each
/// device where there are some, `reference`.
[[nodiscard]] std::vector<std::string> backend_names();

/// The device of `cuda` or `cuda/N`. Throws kInvalidArgument.
[[nodiscard]] int cuda_ordinal(std::string_view name);

/// `threads`: compute threads of the backend, >= 1. Throws kInvalidArgument with the list of names;
/// kUnsupported for `cuda` where it cannot run, with what is missing.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view name, int threads);

}  // namespace tributary
