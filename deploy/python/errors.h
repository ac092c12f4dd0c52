// The library's errors as Python's: every ErrorCode is a class of tributary/errors.py.
#pragma once

#include <nanobind/nanobind.h>

namespace tributary::python {

/// From here on an Error that leaves a function of `module` is the exception of its code.
void bind_errors(nanobind::module_& module);

}  // namespace tributary::python
