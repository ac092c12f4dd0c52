// The device that a worker computes on, and how its memory travels between the workers of a pool.
#pragma once

#include <memory>
#include <string_view>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"
#include "deploy/runtime/backends.h"

namespace tributary {

struct WorkerDevice {
  std::unique_ptr<Backend> backend;
  /// It takes pointers of the backend's memory; null if the pool's own communicator does.
  std::unique_ptr<Communicator> exchange;

  /// The name of the path that carries queries and partial states.
  [[nodiscard]] std::string_view exchange_name(const Communicator& communicator) const {
    return exchange ? exchange->name() : communicator.name();
  }
};

/// Opens the backend `name` (backends.h) for this rank of `communicator`. `cuda` takes the GPU
/// whose number is the rank's among the ranks of its machine; if there are more ranks than GPUs,
/// they share them. Device memory travels by NCCL if every rank has its own GPU and NCCL is
/// installed, otherwise through `communicator`, which outlives the result.
///
/// This is a collective call. If some rank has no such backend, or its backend lacks the merge
/// order, every rank throws as make_backend() does, naming that rank; for names other than `cuda`
/// each rank throws its own error.
[[nodiscard]] WorkerDevice open_device(std::string_view name, int threads,
                                       Communicator& communicator,
                                       const BackendOptions& options = {});

}  // namespace tributary
