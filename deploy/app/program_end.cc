#include "deploy/app/program_end.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>

namespace tributary {

int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  std::fprintf(stderr, "tributary: stdout cannot be written: %s\n",
               std::generic_category().message(errno).c_str());
  return status == 0 ? 1 : status;
}

void end_badly() {
  // Without memory: nothing here allocates.
  const char* what = "an exception of no known type";
  try {
    if (std::current_exception()) std::rethrow_exception(std::current_exception());
  } catch (const std::exception& error) {
    what = error.what();
  } catch (...) {  // `what` says so
  }
  std::fprintf(stderr, "tributary: ended by %s\n", what);
  std::_Exit(1);
}

}  // namespace tributary
