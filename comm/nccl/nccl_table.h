// Internal to comm/nccl: the library, opened when it is first used, so that programs start without
// it.
#pragma once

#include <nccl.h>

#include "core/base/shared_library.h"

namespace tributary {

/// The functions that we use, by their own names less the prefix.
class NcclTable {
 public:
  /// Throws kUnavailable where the library, or one of its functions, is not there or is too old.
  NcclTable();

  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclCommFinalize) comm_finalize;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommAbort) comm_abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclAllGather) all_gather;

 private:
  SharedLibrary library_;
};

/// The one table of the process.
[[nodiscard]] const NcclTable& nccl();

}  // namespace tributary
