#include "tests/deploy/local/simulation/order_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "core/base/limits.h"

namespace tributary::test {

Order OrderWatch::take(int rank, std::span<const std::byte> order) {
  Order decoded = decode_order(order);
  const auto [found, first] = orders_.try_emplace(decoded.round, order.begin(), order.end());
  if (!first) {
    EXPECT_TRUE(std::ranges::equal(found->second, order))
        << "order " << decoded.round << " is another one at worker " << rank;
  }
  // Nobody but rank 0 was there before.
  if (decoded.table && decoded.round > applied_ + 1 && !orders_.contains(applied_ + 1)) {
    begin_with(*decoded.table);
    applied_ = decoded.round;
  }
  for (auto next = orders_.find(applied_ + 1); next != orders_.end();
       next = orders_.find(applied_ + 1)) {
    ++applied_;
    apply(decode_order(next->second));
  }
  return decoded;
}

void OrderWatch::begin_with(const std::vector<Sequence>& table) {
  table_.restore(table);
  running_.clear();
  for (const Sequence& sequence : table) running_.insert(sequence.id);
  check();
}

void OrderWatch::apply(const Order& order) {
  for (const TableOp& op : order.ops) {
    table_.apply(op);
    if (const auto* admit = std::get_if<AdmitOp>(&op)) running_.insert(admit->sequence.id);
    if (const auto* end = std::get_if<FreeOp>(&op)) running_.erase(end->id);
  }
  if (order.table) {
    Order given, followed;
    given.table = order.table;
    followed.table = table_.all();
    EXPECT_TRUE(encode_order(given) == encode_order(followed)) << "order " << order.round;
  }
  check();
}

void OrderWatch::check() const {
  struct Use {
    std::int64_t first_row = 0;
    bool full = false;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, Use> used;
  for (const SequenceId id : running_) {
    const Sequence& s = table_.at(id);
    EXPECT_LE(s.length, s.limit_tokens);
    std::int64_t left = s.length;
    for (const Leaf& leaf : s.leaves) {
      const bool lost = leaf.owner == kNoWorker;
      EXPECT_TRUE(lost || (leaf.owner >= 0 && leaf.owner < workers_)) << leaf.owner;
      EXPECT_TRUE(!lost || leaf.pages.empty());
      std::int64_t first_row = (&leaf - s.leaves.data()) * table_.leaf_tokens();
      for (const std::int32_t page : leaf.pages) {
        // Where nobody writes, a page may have several users, who have it in the same place.
        const Use use{first_row, first_row + kPageTokens <= s.length};
        const auto [other, first] = used.emplace(std::pair(leaf.owner, page), use);
        EXPECT_TRUE(first ||
                    (other->second.full && use.full && other->second.first_row == first_row))
            << "page " << page << " of worker " << leaf.owner << " has two owners";
        first_row += kPageTokens;
      }
      const std::int64_t rows = std::clamp<std::int64_t>(left, 0, table_.leaf_tokens());
      EXPECT_TRUE(lost || std::ssize(leaf.pages) * kPageTokens >= rows) << "sequence " << id;
      left -= rows;
    }
    EXPECT_EQ(left, 0) << "rows of sequence " << id << " lie nowhere";
  }
}

}  // namespace tributary::test
