#include "deploy/python/errors.h"

#include <nanobind/stl/string.h>

#include <exception>
#include <string>

#include "core/base/error.h"
#include "deploy/service/client/tier_client.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;

nb::object exception_of(ErrorCode code, const std::string& message, double retry_after_s = 0) {
  return nb::module_::import_("tributary.errors")
      .attr("exception_of")(std::string(error_code_name(code)), message, retry_after_s);
}

nb::object exception_of(const ItemsError& error) {
  nb::dict failed;
  for (const ItemFailure& item : error.failed()) {
    failed[nb::int_(item.index)] = exception_of(item.status.code(), item.status.message());
  }
  nb::object exception = exception_of(error.code(), error.what());
  exception.attr("failed") = failed;
  return exception;
}

void set_error(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
}

/// Sets the Python error, even if making the exception fails.
template <typename... Args>
void raise(const Args&... error) {
  try {
    set_error(exception_of(error...));
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const PoolFullError& full) {
    raise(full.code(), std::string(full.what()),
          std::chrono::duration<double>(full.retry_after()).count());
  } catch (const ItemsError& error) {
    raise(error);
  } catch (const Error& error) {
    raise(error.code(), std::string(error.what()));
  }
}

}  // namespace

void raise_items(const ItemsError& error, nb::handle results) {
  const nb::object exception = exception_of(error);
  exception.attr("results") = results;
  set_error(exception);
  throw nb::python_error();
}

void bind_errors(nb::module_& module) {
  nb::register_exception_translator(translate);
  nb::list codes;
  for (int code = 1; code < kErrorCodes; ++code) {
    codes.append(std::string(error_code_name(static_cast<ErrorCode>(code))));
  }
  module.attr("error_codes") = nb::tuple(codes);
}

}  // namespace tributary::python
