// One collective again and again: how long it takes from when all ranks are ready for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

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
  /// `bytes`: the block that travels between two ranks.
  CollectiveSeries(Communicator& communicator, Collective collective, std::size_t bytes);

  /// One call, after all ranks are ready for it: microseconds on this rank. Throws what it fails
  /// with.
  double run();

 private:
  Communicator& communicator_;
  Collective collective_;
  std::vector<std::size_t> counts_;
  std::vector<std::byte> block_, send_, recv_;
};

/// The largest `value` over the ranks; all of them wait for each other.
double maximum(Communicator& communicator, double value);

}  // namespace tributary::bench
