// The attention backends of this build, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"

namespace tributary {

/// Names that make_backend accepts, preferred first: `cpu` (the best instruction set here),
/// `cpu/NAME` for each instruction set usable here, `reference`.
[[nodiscard]] std::vector<std::string> backend_names();

/// `threads`: compute threads of the backend, >= 1. Throws kInvalidArgument with the list of names.
[[nodiscard]] std::unique_ptr<Backend> make_backend(std::string_view name, int threads);

}  // namespace tributary
