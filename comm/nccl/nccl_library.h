// Whether this machine has NCCL.
#pragma once

#include <string>

namespace tributary {

struct NcclStatus {
  /// Such as `2.28.9`; empty if the library cannot be opened.
  std::string version;
  /// Why NCCL cannot be used, in one line; empty if it can.
  std::string problem;
};

/// Opens the library if it is not open yet. Does not throw if it is missing.
[[nodiscard]] NcclStatus nccl_status();

}  // namespace tributary
