// A rank on a device, on machines without one: what the host reads of its memory crashes, calls
// wait in a queue until somebody waits for them, and memory that goes too early is a hazard of the
// queue.
#pragma once

#include <memory>
#include <utility>

#include "comm/staged/staged_communicator.h"
#include "deploy/runtime/device.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/deferred_backend.h"
#include "tests/core/deferred_communicator.h"
#include "tests/core/deferred_queue.h"
#include "tests/core/remote_backend.h"

namespace tributary::test {

/// Whether collectives are ordered with the device's work, as NCCL's are, or go through the host.
enum class Carrier { kOrdered, kStaged };

struct DeviceRank {
  /// `host` outlives it.
  DeviceRank(Communicator& host, Carrier carrier) {
    auto memory = std::make_unique<RemoteBackend>(make_cpu_backend({}));
    staged_of_queue = std::make_unique<StagedCommunicator>(*memory, host);
    device.backend = std::make_unique<DeferredBackend>(std::move(memory), queue);
    if (carrier == Carrier::kOrdered) {
      device.exchange = std::make_unique<DeferredCommunicator>(*staged_of_queue, queue);
    } else {
      device.exchange = std::make_unique<StagedCommunicator>(*device.backend, host);
    }
  }

  DeferredQueue queue;
  std::unique_ptr<Communicator> staged_of_queue;  // what the queue does for kOrdered
  WorkerDevice device;
};

}  // namespace tributary::test
