// `tributary verify --service`: golden files through a running service, judged like those of a
// pool.
#pragma once

#include <string>
#include <vector>

#include "deploy/app/verify/verify.h"

namespace tributary {

struct ServiceVerification {
  std::vector<VerifyRow> rows;
  std::vector<std::string> skipped;  // what the pool cannot be asked, in words
};

/// Prompts are computed here and pushed in two halves, each by its own sender. Then every case is
/// decoded in `attend` mode, and in `forward` mode if the pool has weights. Throws Error.
[[nodiscard]] ServiceVerification verify_service(const VerifyOptions& options);

}  // namespace tributary
