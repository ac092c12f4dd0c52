#include "deploy/app/descriptors.h"

#include <sys/resource.h>

namespace tributary {

void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace tributary
