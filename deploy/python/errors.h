// Maps the library's errors to Python's: every ErrorCode is a class of tributary/errors.py.
#pragma once

#include <nanobind/nanobind.h>

namespace tributary::python {

/// After this call an Error that leaves a function of `module` becomes the exception of its code.
void bind_errors(nanobind::module_& module);

}  // namespace tributary::python
