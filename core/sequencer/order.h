// What the sequencer tells the workers of a pool, once per round: changes of the sequence table,
// rows to fill, a step to run. Every rank applies the same orders in the same sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/moves/page_copy.h"
#include "core/plan/plan.h"

namespace tributary {

/// Every owner asks its client for the rows [begin, end) of the sequence and stores its own.
struct FillOp {
  SequenceId id = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A request to recompute one head of one item of the round's step in float64, see Worker.
struct CanaryOrder {
  std::int32_t item = -1;  // index into Order::step; -1: none
  std::int32_t head = 0;
};

struct Order {
  std::uint64_t round = 0;
  std::vector<std::variant<TableOp, FillOp>> ops;  // applied in order, before the step
  std::vector<PageCopy> copies;                    // of leaves that move: after ops
  std::vector<StepItem> step;                      // empty: no step in this round
  /// The layer of each item: one round. Empty: all items run through all layers, round by round.
  std::vector<std::int32_t> item_layer;
  CanaryOrder canary;  // only together with item_layer
  bool stop = false;   // the last order
};

/// Little-endian, see order.cc for the layout. Not a format between versions: all ranks of a pool
/// run the same program.
[[nodiscard]] std::vector<std::byte> encode_order(const Order& order);
/// Throws kMalformedInput.
[[nodiscard]] Order decode_order(std::span<const std::byte> bytes);

}  // namespace tributary
