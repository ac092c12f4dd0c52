#include "core/base/shared_library.h"

#include <dlfcn.h>

#include "core/base/error.h"

namespace tributary {

SharedLibrary::SharedLibrary(std::span<const std::string> names) {
  std::string refusal;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      name_ = name;
      return;
    }
    if (refusal.empty()) refusal = dlerror();  // NOLINT(concurrency-mt-unsafe): per thread
  }
  fail(ErrorCode::kUnavailable, "{}", refusal);
}

void* SharedLibrary::symbol(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) fail(ErrorCode::kUnavailable, "{} has no function {}", name_, name);
  return found;
}

}  // namespace tributary
