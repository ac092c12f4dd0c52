// One collective again and again: how long it takes from when all ranks are ready for it until what
// was received can be used.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary::bench {

enum class Collective : std::uint8_t { kBroadcast, kAllGather, kAllToAll };
inline constexpr std::array kCollectives = {Collective::kBroadcast, Collective::kAllGather,
                                            Collective::kAllToAll};
/// `broadcast`, `all_gather`, `all_to_all`.
[[nodiscard]] std::string_view collective_name(Collective collective) noexcept;

/// Every rank makes the same calls.
class CollectiveSeries {
 public:
  /// `exchange` is measured, on blocks in the backend's memory, of which it takes pointers;
  /// `communicator`, which may be the same where that memory is the host's, says that all are
  /// ready. `bytes`: the block that travels between two ranks. Throws what the memory fails with.
  CollectiveSeries(Backend& backend, Communicator& communicator, Communicator& exchange,
                   Collective collective, std::size_t bytes);

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
  Collective collective_;
  std::vector<std::size_t> counts_;
  std::unique_ptr<Buffer> send_, recv_;  // a broadcast's block is send_, recv_ null
};

/// The largest `value` over the ranks; all of them wait for each other.
double maximum(Communicator& communicator, double value);

}  // namespace tributary::bench
