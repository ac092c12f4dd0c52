// Ranks as processes that are started one by one, by anything: each knows its number and where rank
// 0 listens.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/mesh/mesh_door.h"
#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/interface/communicator.h"

namespace tributary {

struct MeshConfig {
  int rank = 0;
  int ranks = 1;
  /// Gives the address at which rank 0 listens, for the others; asked before each try. Throws
  /// kUnavailable where it is not known yet.
  std::function<std::string()> leader = {};
  /// The same on every rank.
  Secret secret{};
  /// `listen` is required, on every rank. `max_connections` and `secret_of` are set here. A peer
  /// that reads nothing for `send_timeout` is lost.
  TransportConfig transport = {};
  /// The address that the others are told; it gets that of the transport. Empty: that one.
  std::function<std::string(const std::string& bound)> advertised = {};
  /// Called once this rank listens, with its address. May be empty.
  std::function<void(const std::string& bound)> listening = {};
  /// Receives lines for the operator while it waits. May be empty.
  std::function<void(const std::string&)> log = {};
  /// Rank 0's, of a mesh whose lost ranks others may take the place of. It outlives the
  /// communicator. Null: nobody comes later.
  MeshDoor* door = nullptr;
};

/// All ranks, over one connection between each two, by the name of `make_transport`'s transport.
/// Returns when this rank has a connection with every other; ranks start in any order, and one that
/// ends before all have come may come again. Later it waits until its slot is open (MeshDoor), or
/// rank 0 starts anew. In an open slot it gets a communicator that seems to be of all ranks: it
/// makes the calls of a start on it, which rank 0 answers, and then those of survivors().
///
/// A collective is one message from every rank to every other one, if only an empty one: a rank
/// that returns knows that all others have begun the call. Bytes are copied to memory of the
/// communicator and out of it, so that the caller's buffers are free when a call returns.
///
/// Ranks whose calls do not match, in kind or in the size of a block, fail with kInvalidArgument. A
/// rank that fails tells its peers. A lost connection fails the calls that still need the rank at
/// once (kWorkerFailed), and all later ones of this communicator. A call may complete on some ranks
/// and fail on others. survivors() waits for nothing, and may be called without bound.
///
/// Throws kInvalidArgument for a rank or a number of ranks that cannot be, or that rank 0 does not
/// have; kAlreadyExists for a rank that has come already; kPermissionDenied where the secrets
/// differ; kDeadlineExceeded that names the ranks that did not come.
[[nodiscard]] std::unique_ptr<Communicator> join_mesh(const MeshConfig& config,
                                                      const MakeTransport& make_transport,
                                                      Deadline deadline, Clock& clock);

}  // namespace tributary
