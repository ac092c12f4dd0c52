// Decode attention on arrays of the caller, with the interface of FlashMLA's functions
// (tributary/flash_mla.py).
#pragma once

#include <nanobind/nanobind.h>

namespace tributary::python {

void bind_flash_mla(nanobind::module_& module);

}  // namespace tributary::python
