// What the sequencer tells the workers of a pool, once per round: changes of the sequence table,
// rows to fill, a step to run. Every rank applies the same orders in the same sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/plan/plan.h"

namespace tributary {

/// Every owner asks its client for the rows [begin, end) of the sequence and stores its own.
struct FillOp {
  SequenceId id = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct Order {
  std::uint64_t round = 0;
  std::vector<std::variant<TableOp, FillOp>> ops;  // applied in order, before the step
  std::vector<StepItem> step;                      // empty: no step in this round
  bool stop = false;                               // the last order
};

/// Little-endian, see order.cc for the layout. Not a format between versions: all ranks of a pool
/// run the same program.
[[nodiscard]] std::vector<std::byte> encode_order(const Order& order);
/// Throws kMalformedInput.
[[nodiscard]] Order decode_order(std::span<const std::byte> bytes);

}  // namespace tributary
