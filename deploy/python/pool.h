// tributary.Pool: a tier inside the interpreter's process.
#pragma once

#include <nanobind/nanobind.h>

namespace tributary::python {

/// Call it after bind_client().
void bind_pool(nanobind::module_& module);

}  // namespace tributary::python
