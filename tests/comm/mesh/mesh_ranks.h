// Ranks on threads of this process that meet over a transport.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/local/local_transport.h"
#include "comm/mesh/mesh_communicator.h"
#include "core/interface/communicator.h"

namespace tributary::testing_support {

enum class MeshNetwork : std::uint8_t { kLocal, kTcp };

/// Where rank 0 of a mesh listens, and how its ranks reach it.
class MeshPlace {
 public:
  explicit MeshPlace(MeshNetwork network);
  /// Waits for a rank above 0 until rank 0 listens.
  [[nodiscard]] MeshConfig config(int rank, int ranks);
  [[nodiscard]] const MakeTransport& transport() const { return transport_; }
  /// Where rank 0 listens; waits until it does.
  [[nodiscard]] std::string leader();
  /// Rank 0 is to start again.
  void listen_anew();
  /// This rank's communicator, within a minute.
  [[nodiscard]] std::unique_ptr<Communicator> join(int rank, int ranks);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string leader_;  // mutex_
  std::string any_;     // an address to listen at
  MakeTransport transport_;
};

/// Calls `body` on `ranks` new threads, each with its communicator of a fresh mesh. The
/// communicators end when all have returned.
void run_mesh(MeshNetwork network, int ranks, const std::function<void(Communicator&)>& body);

}  // namespace tributary::testing_support
