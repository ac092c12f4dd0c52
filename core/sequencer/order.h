// The sequencer sends one order per round to the workers of a pool: changes of the sequence table,
// pages to copy, a round to run. Every rank applies the same orders in the same sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/plan/step_item.h"
#include "core/sequencer/page_copy.h"

namespace tributary {

/// A request to recompute one head of one item of the round's step in float64, see Worker.
struct CanaryOrder {
  std::int32_t item = -1;  // index into Order::step; -1: none
  std::int32_t head = 0;
};

struct Order {
  std::uint64_t round = 0;
  /// The ranks that take part from this order on, ascending; empty: those of before.
  std::vector<std::int32_t> members;
  std::uint64_t generation = 0;  // with members: how often the pool has regrouped
  /// Where another process comes in the place of a lost worker: all sequences as they are after
  /// `ops`, which that worker begins with. Its first order; the others have them.
  std::optional<std::vector<Sequence>> table;
  std::vector<TableOp> ops;      // applied in order, before the round
  std::vector<PageCopy> copies;  // of leaves that move, and of pages that were shared: after ops
  std::vector<StepItem> step;    // the items of the round; empty: none runs
  CanaryOrder canary;            // only of a round
  bool stop = false;             // the last order
};

/// Little-endian, see order.cc for the layout. Not a format between versions: all ranks of a pool
/// run the same program.
[[nodiscard]] std::vector<std::byte> encode_order(const Order& order);
/// Throws kMalformedInput.
[[nodiscard]] Order decode_order(std::span<const std::byte> bytes);

}  // namespace tributary
