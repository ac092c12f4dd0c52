// How processes come in the place of lost ranks while the others go on.
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

class Communicator;

namespace mesh {
class Mesh;
class StartRecord;
struct Newcomer;
}  // namespace mesh

/// Rank 0's. A newcomer makes the calls of a start as those made them who were there: rank 0
/// answers each from what it kept, so that nobody else waits. Then it waits for survivors() that
/// name it.
class MeshDoor {
 public:
  MeshDoor();
  ~MeshDoor();
  MeshDoor(const MeshDoor&) = delete;
  MeshDoor& operator=(const MeshDoor&) = delete;

  /// The broadcasts of rank 0 and the gathers so far, on the communicator of all, were a start's.
  void started();
  /// The process of `rank` is given up, and all that go on have made survivors() without it:
  /// another one may come.
  void open(int rank);
  /// Waits for a process that has come so, and returns its rank; no value after close().
  [[nodiscard]] std::optional<int> wait();
  /// Answers the calls of the process that wait() has named. Returns when it has made all of them.
  /// Where it fails, another process may come.
  [[nodiscard]] Status let_in(Deadline deadline);
  /// Ends wait() and let_in(). From any thread.
  void close();

  /// For join_mesh().
  void lead_to(std::shared_ptr<mesh::Mesh> mesh, std::shared_ptr<mesh::StartRecord> record);

 private:
  std::shared_ptr<mesh::Mesh> mesh_;
  std::shared_ptr<mesh::StartRecord> record_;
  std::unique_ptr<mesh::Newcomer> newcomer_;  // who is let in
  std::mutex mutex_;                          // guards what follows
  Communicator* pair_ = nullptr;              // with that one, while it is let in
  bool closed_ = false;
};

}  // namespace tributary
