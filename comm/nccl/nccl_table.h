// Internal to comm/nccl: the functions of the library, which is opened at its first use, so that
// programs start without it.
#pragma once

#include <nccl.h>

#include "core/base/shared_library.h"

namespace tributary {

/// The functions that we use, under their own names without the prefix.
class NcclTable {
 public:
  /// Throws kUnavailable if the library or one of its functions is missing or too old.
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

/// The process' only table.
[[nodiscard]] const NcclTable& nccl();

}  // namespace tributary
