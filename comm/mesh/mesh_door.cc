#include "comm/mesh/mesh_door.h"

#include <span>
#include <utility>

#include "comm/mesh/mesh.h"
#include "comm/mesh/pair_communicator.h"
#include "comm/mesh/start_record.h"

namespace tributary {

MeshDoor::MeshDoor() = default;
MeshDoor::~MeshDoor() = default;

void MeshDoor::lead_to(std::shared_ptr<mesh::Mesh> mesh,
                       std::shared_ptr<mesh::StartRecord> record) {
  mesh_ = std::move(mesh);
  record_ = std::move(record);
}

void MeshDoor::started() {
  record_->close();
}

void MeshDoor::open(int rank) {
  mesh_->open_slot(rank);
}

std::optional<int> MeshDoor::wait() {
  const auto newcomer = mesh_->wait_newcomer();
  if (!newcomer) return std::nullopt;
  newcomer_ = std::make_unique<mesh::Newcomer>(*newcomer);
  return newcomer->process.rank;
}

Status MeshDoor::let_in(Deadline deadline) {
  const mesh::MeshPeer process = newcomer_->process;
  const auto pair =
      mesh::make_pair_communicator(mesh_, process.rank, newcomer_->visit, std::span(&process, 1));
  const auto hold = [this](Communicator* held) {
    const std::lock_guard lock(mutex_);
    pair_ = held;
    return !closed_;
  };
  Status in = status_of([&] {
    if (!hold(pair.get())) fail(ErrorCode::kUnavailable, "the pool ends");
    record_->answer(process.rank, *pair, deadline).throw_if_error();
  });
  hold(nullptr);
  if (!in.ok()) mesh_->open_slot(process.rank, newcomer_->visit);
  return in;
}

void MeshDoor::close() {
  mesh_->close_door();
  const std::lock_guard lock(mutex_);
  closed_ = true;
  if (pair_ != nullptr) pair_->interrupt({ErrorCode::kUnavailable, "the pool ends"});
}

}  // namespace tributary
