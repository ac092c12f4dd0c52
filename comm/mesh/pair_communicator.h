// The communicator of rank 0 and a newcomer alone. Internal to comm/mesh.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "comm/mesh/mesh.h"
#include "core/interface/communicator.h"

namespace tributary::mesh {

/// The end on this rank, of the newcomer's `visit` in the slot of `rank`. `newcomer`: on rank 0,
/// the process that is meant.
[[nodiscard]] std::unique_ptr<Communicator> make_pair_communicator(
    const std::shared_ptr<Mesh>& mesh, int rank, std::uint64_t visit,
    std::optional<std::span<const MeshPeer>> newcomer = {});

}  // namespace tributary::mesh
