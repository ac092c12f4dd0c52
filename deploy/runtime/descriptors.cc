#include "deploy/runtime/descriptors.h"

#include <sys/resource.h>

#include "core/base/error.h"

namespace tributary {

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

void need_descriptors(unsigned count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= count) return;
  if (limit.rlim_max < count) {
    fail(ErrorCode::kIo, "{} descriptors are allowed (ulimit -Hn), {} are needed", limit.rlim_max,
         count);
  }
  limit.rlim_cur = count;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace tributary
