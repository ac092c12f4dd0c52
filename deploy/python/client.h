// tributary.Client: a tier as Python reaches it.
#pragma once

#include <nanobind/nanobind.h>

namespace tributary::python {

void bind_client(nanobind::module_& module);

}  // namespace tributary::python
