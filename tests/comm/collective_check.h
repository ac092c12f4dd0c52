// One collective whose contents distinguish call, sender, receiver and position; it is checked in
// full on arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/interface/communicator.h"

namespace tributary::testing_support {

/// Long enough never to pass while all ranks live; a failed rank ends its peers through poison.
[[nodiscard]] Deadline ample_deadline();

/// `bytes` bytes that depend on all the arguments.
[[nodiscard]] std::vector<std::byte> pattern(std::uint64_t call, int from, int to,
                                             std::size_t bytes);

/// Each runs one collective and records a test failure if it is not ok or a received byte is wrong.
/// Every rank passes the sizes of all ranks.
void check_broadcast(Communicator& communicator, std::uint64_t call, int root, std::size_t bytes);
void check_all_gather(Communicator& communicator, std::uint64_t call,
                      const std::vector<std::size_t>& counts);
/// counts[from][to]
void check_all_to_all(Communicator& communicator, std::uint64_t call,
                      const std::vector<std::vector<std::size_t>>& counts);

/// `n` counts of 0 .. max_bytes, one in three 0. The same on every rank for equal generators.
[[nodiscard]] std::vector<std::size_t> ragged_counts(std::mt19937_64& random, int n,
                                                     std::size_t max_bytes);

}  // namespace tributary::testing_support
