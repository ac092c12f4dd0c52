// A rank on a device, on machines without one: the host crashes if it reads the device's memory,
// calls wait in a queue until somebody waits for them, and memory that is freed too early counts as
// a hazard of the queue.
#pragma once

#include <memory>
#include <utility>

#include "comm/staged/staged_communicator.h"
#include "deploy/runtime/device.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/interface/deferred_backend.h"
#include "tests/core/interface/deferred_communicator.h"
#include "tests/core/interface/deferred_queue.h"
#include "tests/core/interface/remote_backend.h"

namespace tributary::test {

/// Whether collectives are ordered with the device's work, as NCCL's are, or go through the host.
enum class Carrier { kOrdered, kStaged };

struct DeviceRank {
  /// `host` outlives it.
  DeviceRank(Communicator& host, Carrier carrier) {
    auto memory = std::make_unique<RemoteBackend>(make_cpu_backend({}));
    staged_of_queue = make_staged_communicator(*memory, host);
    device.backend = std::make_unique<DeferredBackend>(std::move(memory), queue);
    if (carrier == Carrier::kOrdered) {
      device.exchange = std::make_unique<DeferredCommunicator>(*staged_of_queue, queue);
    } else {
      device.exchange = make_staged_communicator(*device.backend, host);
    }
  }

  DeferredQueue queue;
  std::unique_ptr<Communicator> staged_of_queue;  // what the queue does for kOrdered
  WorkerDevice device;
};

}  // namespace tributary::test
