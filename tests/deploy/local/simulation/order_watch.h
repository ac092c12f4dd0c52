// What the ranks of a simulated pool were ordered, and the sequence table that follows from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/sequencer/order.h"

namespace tributary::test {

/// Fails the test where two ranks get different orders, a page has two owners, a leaf lacks pages
/// for its rows, or a newcomer gets another table than the others have.
class OrderWatch {
 public:
  OrderWatch(int workers, int leaf_tokens) : workers_(workers), table_(leaf_tokens) {}

  /// A rank has got this order. Orders may overtake each other. Returns it.
  Order take(int rank, std::span<const std::byte> order);
  /// As of the last order that some rank has got, with all before it.
  [[nodiscard]] const SequenceTable& table() const noexcept { return table_; }
  /// How many sequences it has.
  [[nodiscard]] std::size_t running() const noexcept { return running_.size(); }
  [[nodiscard]] std::uint64_t orders() const noexcept { return applied_; }

 private:
  void apply(const Order& order);
  void begin_with(const std::vector<Sequence>& table);
  void check() const;

  int workers_;
  std::map<std::uint64_t, std::vector<std::byte>> orders_;  // by round
  std::uint64_t applied_ = 0;
  SequenceTable table_;
  std::set<SequenceId> running_;
};

}  // namespace tributary::test
