#include "deploy/python/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <string>

#include "core/base/error.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;

/// Sets the Python error, even if making the exception fails.
void raise(const Error& error, double retry_after_s) {
  const std::string code(error_code_name(error.code()));
  try {
    const nb::object exception = nb::module_::import_("tributary.errors")
                                     .attr("exception_of")(code, error.what(), retry_after_s);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PoolFullError& full) {
    raise(full, std::chrono::duration<double>(full.retry_after()).count());
  } catch (const Error& error) {
    raise(error, 0);
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate);
  nb::list codes;
  for (int code = 1; code < kErrorCodes; ++code) {
    codes.append(std::string(error_code_name(static_cast<ErrorCode>(code))));
  }
  module.attr("error_codes") = nb::tuple(codes);
}

}  // namespace tributary::python
