// The calls that a rank makes in a group, which become one launch.
#include <algorithm>

#include "tests/comm/nccl/emulated/state.h"

namespace tributary::test::nccl {
namespace {

/// Additional polls when a group uses a peer for the first time: connections are made then.
constexpr int kConnectPolls = 2;

struct Call {
  std::shared_ptr<ncclComm> comm;
  Operation operation;
  cudaStream_t stream = nullptr;
};

/// The open group of a thread: NCCL counts groups per thread.
struct Group {
  int depth = 0;
  std::vector<Call> calls;
  ncclResult_t error = ncclSuccess;
};
thread_local Group group;

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

bool collective(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kAllGather;
}

/// Whether the communicator takes calls now.
ncclResult_t check_state(ncclComm& comm) {
  if (comm.state == ncclInProgress) {
    add_misuse("a call while the one before was in progress");
    return comm.fails(ncclInvalidArgument, "the communicator is not ready");
  }
  if (comm.state != ncclSuccess) return comm.state;
  if (comm.stage == Stage::kReady) return ncclSuccess;
  add_misuse("a call after ncclCommFinalize");
  return comm.fails(ncclInvalidUsage, "the communicator was finalized");
}

ncclResult_t check_stream(const Device& device, ncclComm& comm, cudaStream_t handle) {
  const auto found = device.streams.find(handle);
  if (found == device.streams.end()) {
    return comm.fails(ncclUnhandledCudaError, "there is no such stream");
  }
  const CUstream_st& stream = *found->second;
  if (stream.device != comm.device) {
    return comm.fails(ncclInvalidUsage, "the stream is of another device");
  }
  if (stream.capture != nullptr) return comm.fails(ncclInvalidUsage, "the stream is captured");
  if (comm.stream != nullptr && comm.stream != handle) {
    return comm.fails(ncclInvalidUsage, "a second stream: not emulated");
  }
  return ncclSuccess;
}

ncclResult_t check(const Device& device, ncclComm& comm, const Operation& operation,
                   cudaStream_t stream) {
  ncclResult_t result = check_state(comm);
  if (result == ncclSuccess) result = check_stream(device, comm, stream);
  if (result != ncclSuccess) return result;
  const bool reads = operation.kind != Kind::kRecv &&
                     (operation.kind != Kind::kBroadcast || operation.peer == comm.rank);
  const bool writes = operation.kind != Kind::kSend;
  const bool given = operation.bytes == 0 || ((!reads || operation.from != nullptr) &&
                                              (!writes || operation.to != nullptr));
  const bool named = operation.peer >= 0 && operation.peer < comm.size();
  return given && named ? ncclSuccess : comm.fails(ncclInvalidArgument, "wrong arguments");
}

/// The group's calls of one communicator. Afterwards its state is in progress.
void submit(const std::shared_ptr<ncclComm>& comm) {
  const auto launch = std::make_shared<Launch>();
  std::vector<bool>& wants = comm->clique->wants[static_cast<std::size_t>(comm->rank)];
  for (Call& call : group.calls) {
    if (call.comm != comm) continue;
    const Operation& operation = launch->operations.emplace_back(std::move(call.operation));
    comm->stream = call.stream;
    for (std::size_t peer = 0; peer < wants.size(); ++peer) {
      if (!collective(operation.kind) && std::cmp_not_equal(peer, operation.peer)) continue;
      if (!wants[peer]) comm->idle_polls = kConnectPolls;
      wants[peer] = true;
    }
  }
  comm->entering = launch;
  comm->state = ncclInProgress;
}

/// Hands all calls of the group to their communicators.
ncclResult_t close() {
  const Lock lock(device::the_device().mutex);
  const bool any = !group.calls.empty();
  while (!group.calls.empty()) {
    const std::shared_ptr<ncclComm> comm = group.calls.front().comm;
    submit(comm);
    std::erase_if(group.calls, [&](const Call& call) { return call.comm == comm; });
  }
  return any ? ncclInProgress : ncclSuccess;
}

}  // namespace

ncclResult_t group_start() {
  ++group.depth;
  return ncclSuccess;
}

/// A group with a call that failed does nothing.
ncclResult_t group_end() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const ncclResult_t error = std::exchange(group.error, ncclSuccess);
  if (error == ncclSuccess) return close();
  group.calls.clear();
  return error;
}

ncclResult_t enqueue(std::string_view function, ncclComm_t handle, Operation operation,
                     std::size_t count, ncclDataType_t type, cudaStream_t stream) {
  const ncclResult_t result =
      call(function, handle, [&](Device& device, Lock&, const std::shared_ptr<ncclComm>& comm) {
        operation.bytes = count * bytes_of(type);
        operation.rank = comm->rank;
        operation.device = comm->device;
        const ncclResult_t checked = check(device, *comm, operation, stream);
        const bool nothing = operation.bytes == 0 && collective(operation.kind);
        if (checked == ncclSuccess && !nothing) {
          group.calls.push_back({comm, std::move(operation), stream});
        }
        return checked;
      });
  if (group.depth == 0) return result == ncclSuccess ? close() : result;
  if (result != ncclSuccess) group.error = result;
  return result;
}

void enter(Device& device, ncclComm& comm) {
  const Clique& clique = *comm.clique;
  const auto self = static_cast<std::size_t>(comm.rank);
  const auto met = [&](const Operation& operation) {
    if (!collective(operation.kind)) {
      return bool{clique.wants[static_cast<std::size_t>(operation.peer)][self]};
    }
    return std::ranges::all_of(clique.wants, [&](const auto& peer) { return bool{peer[self]}; });
  };
  if (!std::ranges::all_of(comm.entering->operations, met)) return;
  const std::shared_ptr<Launch> launch = std::exchange(comm.entering, nullptr);
  const cudaError_t code =
      device::push(device, comm.stream,
                   {.what = "a collective",
                    .run =
                        [launch] {
                          const Lock lock(device::the_device().mutex);
                          launch->finished = true;
                          for (const Operation& operation : launch->operations) {
                            if (!operation.fault.empty())
                              throw device::IllegalAddress(operation.fault);
                          }
                        },
                    .ready = [launch, shared = comm.clique] { return arrive(*shared, launch); }});
  comm.state = code == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
  std::erase_if(comm.pending, [](const auto& before) { return before->finished; });
  comm.pending.push_back(launch);
  ++the_nccl().counters.groups;
}

}  // namespace tributary::test::nccl
