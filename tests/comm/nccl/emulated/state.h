// Internal to this folder: communicators, and their work on their streams. All of it is guarded by
// the emulated device's mutex.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/comm/nccl/emulated/emulated_nccl.h"
#include "tests/kernels/cuda/runtime/state.h"

namespace tributary::test::nccl {

using device::Device;
using device::Lock;

enum class Kind { kSend, kRecv, kBroadcast, kAllGather };

/// One rank's part in a transfer.
struct Operation {
  Kind kind = Kind::kSend;
  const std::byte* from = nullptr;  // null where nothing is read
  std::byte* to = nullptr;          // null where nothing is written
  std::size_t bytes = 0;            // of one block
  int peer = 0;                     // of a broadcast: its root
  int rank = 0, device = 0;         // its own
  bool done = false;
  std::string fault = {};  // what would make a device fail
};

/// A rank's group: one kernel on its stream.
struct Launch {
  std::vector<Operation> operations;
  bool arrived = false;   // the stream has reached it
  bool aborted = false;   // ends without its peers and without data
  bool finished = false;  // has left the stream
};

/// Sends and receives between two ranks that their streams have reached, in order. The shared
/// pointers to operations keep their launches alive.
struct Channel {
  std::deque<std::shared_ptr<Operation>> sends, recvs;
};

/// The ranks of one identity.
struct Clique {
  std::vector<int> devices;              // by rank; -1: has not joined yet
  std::vector<std::vector<bool>> wants;  // [rank][peer]: has a call that exchanges with it
  int ended = 0;                         // ranks that were finalized
  std::map<std::pair<int, int>, Channel> channels;                            // by sender, receiver
  std::map<std::uint64_t, std::vector<std::shared_ptr<Operation>>> arrivals;  // of collectives
  std::vector<std::uint64_t> collectives;  // that arrived, by rank
};

enum class Stage { kJoining, kReady, kFinalizing, kFinalized };

struct Nccl {
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> live;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by identity
  std::map<std::pair<std::string, int>, std::pair<int, ncclResult_t>> failures;
  std::string misuse;
  NcclCounters counters;
};
[[nodiscard]] Nccl& the_nccl();

/// The failure that a test has requested for this call; otherwise success.
[[nodiscard]] ncclResult_t refusal(std::string_view function, int rank);
void add_misuse(const std::string& words);

/// The frame of a call on a communicator: runs `body` under the lock, unless there is no such
/// communicator or a test has requested a failure.
template <typename Body>
ncclResult_t call(std::string_view function, ncclComm_t handle, const Body& body);

// clique.cc: the life of a communicator.
[[nodiscard]] ncclResult_t make_identity(ncclUniqueId& id);
[[nodiscard]] ncclResult_t join(ncclComm_t* handle, int size, const ncclUniqueId& id, int rank,
                                const ncclConfig_t* config);
/// A communicator makes progress only here, when it is polled.
[[nodiscard]] ncclResult_t poll(ncclComm_t handle, ncclResult_t* state);
[[nodiscard]] ncclResult_t finalize(ncclComm_t handle);
[[nodiscard]] ncclResult_t destroy(ncclComm_t handle);
[[nodiscard]] ncclResult_t abort(ncclComm_t handle);
[[nodiscard]] const char* last_words(ncclComm_t handle);

// groups.cc: calls on a communicator, until they are on the stream.
[[nodiscard]] ncclResult_t group_start();
[[nodiscard]] ncclResult_t group_end();
[[nodiscard]] ncclResult_t enqueue(std::string_view function, ncclComm_t handle,
                                   Operation operation, std::size_t count, ncclDataType_t type,
                                   cudaStream_t stream);
/// Puts the communicator's calls on its stream once all its peers have made theirs.
void enter(Device& device, ncclComm& comm);

// transfer.cc: what happens when a stream has reached a launch.
/// Marks the launch as reached. Returns whether all of it is done.
[[nodiscard]] bool arrive(Clique& clique, const std::shared_ptr<Launch>& launch);
/// Removes the rank's waiting operations, so that its peers never match them.
void withdraw(Clique& clique, int rank);

}  // namespace tributary::test::nccl

/// The object that NCCL's handle points to.
struct ncclComm {
  std::shared_ptr<tributary::test::nccl::Clique> clique;
  int rank = 0;
  int device = 0;
  tributary::test::nccl::Stage stage = tributary::test::nccl::Stage::kJoining;
  ncclResult_t state = ncclInProgress;
  int idle_polls = 0;  // polls until it makes progress
  std::string words;   // about the last error
  cudaStream_t stream = nullptr;
  std::shared_ptr<tributary::test::nccl::Launch> entering;
  std::vector<std::shared_ptr<tributary::test::nccl::Launch>> pending;  // on the stream

  [[nodiscard]] int size() const { return static_cast<int>(clique->devices.size()); }
  ncclResult_t fails(ncclResult_t result, std::string why) {
    words = std::move(why);
    return result;
  }
};

namespace tributary::test::nccl {

template <typename Body>
ncclResult_t call(std::string_view function, ncclComm_t handle, const Body& body) {
  Device& device = device::the_device();
  Lock lock(device.mutex);
  const auto found = the_nccl().live.find(handle);
  if (found == the_nccl().live.end()) {
    add_misuse(std::string(function) + " of a communicator that there is not");
    return ncclInvalidArgument;
  }
  const std::shared_ptr<ncclComm> comm = found->second;
  if (const ncclResult_t refused = refusal(function, comm->rank); refused != ncclSuccess) {
    return comm->fails(refused, "planted");
  }
  return body(device, lock, comm);
}

}  // namespace tributary::test::nccl
