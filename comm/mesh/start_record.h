// What the calls of a start gave to every rank. Internal to comm/mesh.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/collective.h"
#include "core/interface/communicator.h"

namespace tributary::mesh {

/// Kept by rank 0, for processes that come later. The thread of the calls adds; after close(), that
/// of a MeshDoor answers.
class StartRecord {
 public:
  /// A call that has succeeded on rank 0: a broadcast of its own, or a gather.
  void add(const Collective& call);
  /// Later calls are not a start's.
  void close() { closed_ = true; }

  /// Answers all calls of `rank`, the other one of `pair`, whose blocks replace those of the
  /// process that it was. See LateCommunicator.
  [[nodiscard]] Status answer(int rank, Communicator& pair, Deadline deadline);

 private:
  struct Call {
    std::vector<std::byte> bytes;     // that each rank receives
    std::vector<std::size_t> counts;  // of a gather: the bytes from each rank
  };
  std::vector<Call> calls_;
  std::atomic<bool> closed_ = false;
};

}  // namespace tributary::mesh
