// libnccl.so.2 of the emulated device: the functions that comm/nccl loads. They are implemented in
// the program that opens the library, beside the device.
#include "tests/comm/nccl/emulated/state.h"

using tributary::test::nccl::Kind;
using tributary::test::nccl::Operation;
namespace emulated = tributary::test::nccl;

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return emulated::make_identity(*id);
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "operation in progress";
    default:
      return "unknown result";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  return emulated::last_words(comm);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return emulated::join(comm, size, id, rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  return emulated::poll(comm, state);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return emulated::finalize(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return emulated::destroy(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return emulated::abort(comm);
}

ncclResult_t ncclGroupStart() {
  return emulated::group_start();
}

ncclResult_t ncclGroupEnd() {
  return emulated::group_end();
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return emulated::enqueue(
      "ncclSend", comm,
      {.kind = Kind::kSend, .from = static_cast<const std::byte*>(from), .peer = peer}, count, type,
      stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return emulated::enqueue("ncclRecv", comm,
                           {.kind = Kind::kRecv, .to = static_cast<std::byte*>(to), .peer = peer},
                           count, type, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulated::enqueue("ncclBroadcast", comm,
                           {.kind = Kind::kBroadcast,
                            .from = static_cast<const std::byte*>(from),
                            .to = static_cast<std::byte*>(to),
                            .peer = root},
                           count, type, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return emulated::enqueue("ncclAllGather", comm,
                           {.kind = Kind::kAllGather,
                            .from = static_cast<const std::byte*>(from),
                            .to = static_cast<std::byte*>(to)},
                           count, type, stream);
}
