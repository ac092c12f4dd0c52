// `tributary verify --service`: golden files through a running service, judged as those of a pool.
#pragma once

#include <string>
#include <vector>

#include "deploy/app/verify/verify.h"

namespace tributary {

struct ServiceVerification {
  std::vector<VerifyRow> rows;
  std::vector<std::string> skipped;  // what the pool cannot be asked, in words
};

/// Prompts are computed here and pushed in two halves, each by a sender of its own. Then every case
/// is decoded in `attend` mode, and in `forward` mode where the pool has weights. Throws Error.
[[nodiscard]] ServiceVerification verify_service(const VerifyOptions& options);

}  // namespace tributary
