// What this machine has of NCCL.
#pragma once

#include <string>

namespace tributary {

struct NcclStatus {
  /// `2.28.9`; empty where the library cannot be opened.
  std::string version;
  /// Why no communicator can be made with it, in one line; empty where it can.
  std::string problem;
};

/// Opens the library where it is not open yet; never throws for what is missing.
[[nodiscard]] NcclStatus nccl_status();

}  // namespace tributary
