// One collective, repeated: how long it takes from the moment that all ranks are ready until the
// received data can be used.
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
  /// `exchange` is measured, on blocks in the backend's memory, of which it takes pointers;
  /// `communicator`, which may be the same where that memory is the host's, says that all are
  /// ready. `bytes`: the block that travels between two ranks. Throws what the memory fails with.
  CollectiveSeries(Backend& backend, Communicator& communicator, Communicator& exchange,
                   CollectiveKind kind, std::size_t bytes);

  /// One call, after all ranks are ready for it: microseconds on this rank, by the host's clock,
  /// until it is done. Throws what it fails with.
  double run();
  /// One call, without waiting for the others first. It is done when this returns, or throws.
  void call();

 private:
  [[nodiscard]] Status enqueue();

  Backend& backend_;
  Communicator& communicator_;
  Communicator& exchange_;
  CollectiveKind kind_;
  std::vector<std::size_t> counts_;
  std::unique_ptr<Buffer> send_, recv_;  // a broadcast's block is send_, recv_ null
};

/// The largest `value` over the ranks; all of them wait for each other.
double maximum(Communicator& communicator, double value);

}  // namespace tributary::bench
