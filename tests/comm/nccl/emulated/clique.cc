// The life of a communicator: from an identity to its end.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/comm/nccl/emulated/state.h"

namespace tributary::test::nccl {
namespace {

/// The magic number in NCCL_CONFIG_INITIALIZER.
constexpr unsigned kConfigMagic = 0xcafebeef;
/// The fewest polls until a start is complete: in NCCL it runs on a thread of its own.
constexpr int kStartPolls = 2;

std::string key_of(const ncclUniqueId& id) {
  return {id.internal, sizeof(id.internal)};
}

void set_error(ncclComm& comm, ncclResult_t error, std::string words) {
  comm.state = error;
  comm.words = std::move(words);
  comm.entering = nullptr;
}

/// Once all ranks have joined: ready if each has its own device, otherwise an error.
void start(ncclComm& comm) {
  const std::vector<int>& devices = comm.clique->devices;
  if (std::ranges::count(devices, -1) > 0) return;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const auto same =
        std::find(devices.begin(), devices.begin() + static_cast<int>(rank), devices[rank]);
    if (same == devices.begin() + static_cast<int>(rank)) continue;
    set_error(comm, ncclInvalidUsage,
              fmt::format("ranks {} and {} are on one device, {}", same - devices.begin(), rank,
                          devices[rank]));
    return;
  }
  comm.stage = Stage::kReady;
  comm.state = ncclSuccess;
}

/// A real device makes progress by itself; here the caller has to drive it.
void quiesce(Device& device, Lock& lock, ncclComm& comm) {
  if (const auto found = device.streams.find(comm.stream); found != device.streams.end()) {
    const std::shared_ptr<CUstream_st> stream = found->second;
    device::make_progress(device, lock, stream, [&] { return stream->work.empty(); });
  }
  std::erase_if(comm.pending, [](const auto& launch) { return launch->finished; });
  if (!comm.pending.empty() || comm.clique->ended < comm.size()) return;
  comm.stage = Stage::kFinalized;
  comm.state = ncclSuccess;
}

void advance(Device& device, Lock& lock, ncclComm& comm) {
  if (device.sticky != cudaSuccess) {
    set_error(comm, ncclUnhandledCudaError, cudaGetErrorString(device.sticky));
    return;
  }
  if (comm.idle_polls > 0) {
    --comm.idle_polls;
    return;
  }
  switch (comm.stage) {
    case Stage::kJoining:
      return start(comm);
    case Stage::kReady:
      return enter(device, comm);
    case Stage::kFinalizing:
      return quiesce(device, lock, comm);
    case Stage::kFinalized:
      return;
  }
}

/// The launches on its stream end without its peers, and theirs end without it.
void end(ncclComm& comm) {
  for (const auto& launch : comm.pending) {
    if (launch->finished) continue;
    launch->aborted = true;
    ++the_nccl().counters.aborted;
  }
  withdraw(*comm.clique, comm.rank);
  device::the_device().changed.notify_all();
  the_nccl().live.erase(&comm);
}

}  // namespace

ncclResult_t make_identity(ncclUniqueId& id) {
  const Lock lock(device::the_device().mutex);
  if (const ncclResult_t refused = refusal("ncclGetUniqueId", 0); refused != ncclSuccess) {
    return refused;
  }
  id = {};
  const std::string words = fmt::format("emulated {}", the_nccl().cliques.size());
  std::ranges::copy(words, id.internal);
  the_nccl().cliques.emplace(key_of(id), std::make_shared<Clique>());
  return ncclSuccess;
}

ncclResult_t join(ncclComm_t* handle, int size, const ncclUniqueId& id, int rank,
                  const ncclConfig_t* config) {
  *handle = nullptr;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return ncclUnhandledCudaError;
  const Lock lock(device::the_device().mutex);
  if (const ncclResult_t refused = refusal("ncclCommInitRankConfig", rank);
      refused != ncclSuccess) {
    return refused;
  }
  const bool configured = config != nullptr && config->magic == kConfigMagic &&
                          config->size == sizeof(*config) && config->blocking == 0;
  const auto found = the_nccl().cliques.find(key_of(id));
  if (!configured || found == the_nccl().cliques.end() || rank < 0 || rank >= size) {
    return ncclInvalidArgument;
  }
  Clique& clique = *found->second;
  if (clique.devices.empty()) {
    const auto ranks = static_cast<std::size_t>(size);
    clique.devices.assign(ranks, -1);
    clique.wants.assign(ranks, std::vector<bool>(ranks));
    clique.collectives.assign(ranks, 0);
  }
  int& place = clique.devices[static_cast<std::size_t>(rank)];
  if (std::ssize(clique.devices) != size || place != -1) return ncclInvalidArgument;
  place = device;
  auto comm = std::make_shared<ncclComm>();
  comm->clique = found->second;
  comm->rank = rank;
  comm->device = device;
  comm->idle_polls = kStartPolls;
  *handle = comm.get();
  the_nccl().live.emplace(*handle, std::move(comm));
  return ncclInProgress;
}

ncclResult_t poll(ncclComm_t handle, ncclResult_t* state) {
  return call("ncclCommGetAsyncError", handle, [&](Device& device, Lock& lock, const auto& comm) {
    ++the_nccl().counters.polls;
    if (comm->state == ncclInProgress) advance(device, lock, *comm);
    *state = comm->state;
    return ncclSuccess;
  });
}

ncclResult_t finalize(ncclComm_t handle) {
  return call("ncclCommFinalize", handle, [](Device&, Lock&, const auto& comm) {
    if (comm->state != ncclSuccess && comm->state != ncclInProgress) return comm->state;
    if (comm->state == ncclInProgress || comm->stage != Stage::kReady) {
      add_misuse("ncclCommFinalize of a communicator that is not ready");
      return comm->fails(ncclInvalidArgument, "not ready");
    }
    ++comm->clique->ended;
    comm->stage = Stage::kFinalizing;
    return comm->state = ncclInProgress;
  });
}

ncclResult_t destroy(ncclComm_t handle) {
  return call("ncclCommDestroy", handle, [](Device&, Lock&, const auto& comm) {
    if (comm->stage != Stage::kFinalized) add_misuse("ncclCommDestroy before its end: it waits");
    end(*comm);
    return ncclSuccess;
  });
}

ncclResult_t abort(ncclComm_t handle) {
  return call("ncclCommAbort", handle, [](Device&, Lock&, const auto& comm) {
    end(*comm);
    return ncclSuccess;
  });
}

const char* last_words(ncclComm_t handle) {
  const Lock lock(device::the_device().mutex);
  const auto found = the_nccl().live.find(handle);
  return found == the_nccl().live.end() ? "" : found->second->words.c_str();
}

}  // namespace tributary::test::nccl
