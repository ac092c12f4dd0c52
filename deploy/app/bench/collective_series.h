// An all-gather or all-to-all, repeated: the time from the moment when all ranks are ready until
// the received data can be used.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary::bench {

/// Every rank makes the same calls.
class CollectiveSeries {
 public:
  /// `exchange` is measured, on blocks in the backend's memory, to which it takes pointers.
  /// `communicator` tells that all are ready; it may be the same if that memory is the host's.
  /// `bytes`: the block that travels between two ranks. Throws if there is no memory.
  CollectiveSeries(Backend& backend, Communicator& communicator, Communicator& exchange,
                   CollectiveKind kind, std::size_t bytes);

  /// Makes one call, after all ranks are ready for it. Returns the microseconds until it is done,
  /// on this rank and by the host's clock. Throws the call's error.
  double run();
  /// Makes one call, without waiting for the others first. It is done when this returns, or throws.
  void call();

 private:
  [[nodiscard]] Status enqueue();

  Backend& backend_;
  Communicator& communicator_;
  Communicator& exchange_;
  CollectiveKind kind_;
  std::vector<std::size_t> counts_;
  std::unique_ptr<Buffer> send_, recv_;
};

/// The largest `value` over the ranks; all of them wait for each other.
double maximum(Communicator& communicator, double value);

}  // namespace tributary::bench
