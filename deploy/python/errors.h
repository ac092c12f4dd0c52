// Maps the library's errors to Python's: every ErrorCode is a class of tributary/errors.py.
#pragma once

#include <nanobind/nanobind.h>

#include "deploy/service/client/items_error.h"

namespace tributary::python {

/// Raises the exception of an ItemsError; `results` are those of the items that did not fail.
[[noreturn]] void raise_items(const ItemsError& error, nanobind::handle results);

/// After this call an Error that leaves a function of `module` becomes the exception of its code.
void bind_errors(nanobind::module_& module);

}  // namespace tributary::python
