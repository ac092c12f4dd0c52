#include "comm/nccl/nccl_table.h"

#include <array>
#include <string>

#include "comm/nccl/nccl_library.h"
#include "core/base/error.h"

namespace tributary {
namespace {

/// The first version with the configuration and the nonblocking calls of our header.
constexpr int kLeastVersion = NCCL_VERSION(2, 18, 0);

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

std::array<std::string, 2> library_names() {
  return {"libnccl.so.2", std::string(TRIBUTARY_CUDA_LIBRARIES) + "/libnccl.so.2"};
}

}  // namespace

NcclTable::NcclTable() : library_(library_names()) {
  library_.find("ncclGetVersion", get_version);
  library_.find("ncclGetUniqueId", get_unique_id);
  library_.find("ncclGetErrorString", get_error_string);
  library_.find("ncclGetLastError", get_last_error);
  library_.find("ncclCommInitRankConfig", comm_init_rank_config);
  library_.find("ncclCommGetAsyncError", comm_get_async_error);
  library_.find("ncclCommFinalize", comm_finalize);
  library_.find("ncclCommDestroy", comm_destroy);
  library_.find("ncclCommAbort", comm_abort);
  library_.find("ncclGroupStart", group_start);
  library_.find("ncclGroupEnd", group_end);
  library_.find("ncclSend", send);
  library_.find("ncclRecv", recv);
  library_.find("ncclBroadcast", broadcast);
  library_.find("ncclAllGather", all_gather);
  int version = 0;
  (void)get_version(&version);
  if (version < kLeastVersion) {
    fail(ErrorCode::kUnavailable, "NCCL is {}, expected at least {}", version_text(version),
         version_text(kLeastVersion));
  }
}

const NcclTable& nccl() {
  static const NcclTable table;
  return table;
}

NcclStatus nccl_status() {
  NcclStatus result;
  result.problem = status_of([&] {
                     int version = 0;
                     (void)nccl().get_version(&version);
                     result.version = version_text(version);
                   }).message();
  return result;
}

}  // namespace tributary
