#include "tests/core/sequencer/sequencer_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "tests/core/cache/same_sequence.h"

namespace tributary {
namespace {

std::int64_t pages_for(std::int64_t rows) {
  return (rows + kPageTokens - 1) / kPageTokens;
}

/// Rows of leaf `leaf` among the first `length`.
std::int64_t rows_in(std::size_t leaf, std::int64_t length, int leaf_tokens) {
  const std::int64_t begin = static_cast<std::int64_t>(leaf) * leaf_tokens;
  return std::clamp<std::int64_t>(length - begin, 0, leaf_tokens);
}

}  // namespace

SequencerModel::SequencerModel(const SequencerConfig& config)
    : config_(config), sequencer_(config), replica_(config.placement.model.leaf_tokens) {}

std::optional<SequenceId> SequencerModel::admit(const AdmitRequest& request, const AdmitAs& as) {
  const auto id = sequencer_.sequences().admit(request, as);
  if (!id) return id;
  ordered_ = false;
  if (as.id == 0) {
    EXPECT_EQ(*id >> 32, config_.incarnation);
  } else {
    EXPECT_EQ(*id, as.id);
  }
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  EXPECT_TRUE(
      expected_.emplace(*id, Expected{as.tag, request.prompt_tokens, limit, request.prompt_tokens})
          .second);
  return id;
}

void SequencerModel::open_step(const std::vector<StepItem>& requests) {
  sequencer_.steps().open(requests);
  ordered_ = false;
  for (const auto& request : requests) open_.emplace(request.id, Open{request.tokens, false});
}

void SequencerModel::order_round(const std::vector<StepItem>& items, CanaryOrder canary) {
  sequencer_.steps().order_round(items, canary);
  for (const auto& item : items) pending_.push_back({item, false});
  if (canary.item >= 0) pending_.at(static_cast<std::size_t>(canary.item)).canary = true;
}

void SequencerModel::commit(SequenceId id, std::int32_t accepted) {
  sequencer_.steps().commit(id, accepted);
  ordered_ = false;
  expected_.at(id).length += accepted;
  open_.erase(id);
  std::erase_if(pending_, [&](const Item& item) { return item.request.id == id; });
}

void SequencerModel::begin(const std::vector<StepItem>& requests) {
  open_step(requests);
  order_round(requests);
}

void SequencerModel::abort_all() {
  while (!open_.empty()) commit(open_.begin()->first, 0);
}

bool SequencerModel::raise_limit(SequenceId id, std::int64_t limit_tokens) {
  const bool raised = sequencer_.sequences().raise_limit(id, limit_tokens);
  Expected& expected = expected_.at(id);
  if (raised && limit_tokens > expected.limit) {
    ordered_ = false;
    expected.limit = limit_tokens;
  }
  return raised;
}

void SequencerModel::truncate(SequenceId id, std::int64_t length) {
  sequencer_.sequences().truncate(id, length);
  ordered_ = false;
  Expected& expected = expected_.at(id);
  expected.length = length;
  ++expected.epoch;
}

void SequencerModel::free(SequenceId id) {
  sequencer_.sequences().free(id);
  ordered_ = false;
  expected_.erase(id);
}

void SequencerModel::close(SequenceId id) {
  const Sequence sequence = sequencer_.ledger().table().at(id);
  sequencer_.sequences().close(id);
  ordered_ = false;
  expected_.erase(id);
  closed_.push_back({round_ + 1, sequence});
}

void SequencerModel::release_closed(std::uint64_t drained_round) {
  sequencer_.sequences().release_closed(drained_round);
  std::erase_if(closed_, [&](const Closed& closed) { return closed.round <= drained_round; });
}

void SequencerModel::order_ended(bool ok) {
  const auto completed = sequencer_.moves().totals().completed;
  sequencer_.order_ended(ok);
  if (ok) last_pages_.clear();
  if (sequencer_.moves().totals().completed != completed) ordered_ = false;
}

void SequencerModel::order_copies(std::int64_t most) {
  const auto completed = sequencer_.moves().totals().completed;
  (void)sequencer_.moves().order_copies(most);
  if (sequencer_.moves().totals().completed != completed) ordered_ = false;
}

/// Every copy goes from the page of a leaf, as the replica has it, to the page that replaces it;
/// the last pages of a leaf that grows have been replaced by the same order, or by one that failed.
void SequencerModel::check_copies(const Order& order) {
  const auto leaf_pages = static_cast<std::size_t>(replica_.leaf_tokens() / kPageTokens);
  for (const PageCopy& copy : order.copies) {
    int found = 0;
    for (const RunningMove& move : sequencer_.moves().running()) {
      if (copy.from != move.from || copy.to != move.move.to) continue;
      const Sequence& s = replica_.at(move.move.id);
      for (std::size_t p = 0; p < move.to_pages.size(); ++p) {
        const Leaf& leaf =
            s.leaves.at(static_cast<std::size_t>(move.move.first_leaf) + p / leaf_pages);
        EXPECT_EQ(leaf.owner, move.from);
        EXPECT_EQ(leaf.pages.at(p % leaf_pages), move.from_pages[p]);
        if (copy.from_page == move.from_pages[p] && copy.to_page == move.to_pages[p]) ++found;
      }
    }
    for (const TableOp& op : order.ops) {
      const auto* moved = std::get_if<MoveOp>(&op);
      if (moved == nullptr || moved->owner != copy.to) continue;
      if (std::ranges::count(moved->pages, copy.to_page) == 0) continue;
      ++found;
      last_pages_.push_back(copy);
    }
    if (found == 0) found = static_cast<int>(std::ranges::count(last_pages_, copy));
    EXPECT_EQ(found, 1);
    EXPECT_GE(copy.layer, 0);
    EXPECT_LT(copy.layer, config_.placement.model.layers);
  }
}

Order SequencerModel::take_order() {
  Order order = decode_order(encode_order(sequencer_.take_order()));
  EXPECT_EQ(order.round, ++round_);
  for (const TableOp& op : order.ops) replica_.apply(op);
  check_copies(order);
  EXPECT_EQ(order.step.size(), pending_.size());
  std::int32_t canary = -1;
  for (std::size_t i = 0; i < std::min(order.step.size(), pending_.size()); ++i) {
    const StepItem& item = order.step[i];
    EXPECT_EQ(item.id, pending_[i].request.id);
    EXPECT_EQ(item.epoch, expected_.at(item.id).epoch);
    EXPECT_EQ(item.tokens, open_.at(item.id).tokens);
    EXPECT_EQ(item.base_length, expected_.at(item.id).length);
    EXPECT_EQ(item.layer, pending_[i].request.layer);
    if (pending_[i].canary) canary = static_cast<std::int32_t>(i);
    open_.at(item.id).taken = true;
  }
  EXPECT_EQ(order.canary.item, canary);
  pending_.clear();
  ordered_ = true;
  return order;
}

void SequencerModel::check() const {
  check_sequences();
  check_pages();
  check_loads();
}

void SequencerModel::check_sequences() const {
  const SequenceTable& table = sequencer_.ledger().table();
  ASSERT_EQ(table.size(), expected_.size());
  if (ordered_) {
    ASSERT_EQ(replica_.size(), expected_.size());
  }
  for (const auto& [id, expected] : expected_) {
    const Sequence& s = table.at(id);
    ASSERT_EQ(s.id, id);
    ASSERT_EQ(s.tag, expected.tag);
    ASSERT_EQ(s.prompt_tokens, expected.prompt);
    ASSERT_EQ(s.limit_tokens, expected.limit);
    ASSERT_EQ(s.length, expected.length);
    ASSERT_EQ(s.epoch, expected.epoch);
    if (ordered_) {
      ASSERT_TRUE(same_sequence(replica_.at(id), s));
    }
  }
  // What may move is known without a look at the others.
  std::set<SequenceId> with_full_leaves;
  for (const auto& [id, expected] : expected_) {
    if (expected.length >= table.leaf_tokens()) with_full_leaves.insert(id);
  }
  ASSERT_EQ(sequencer_.ledger().with_full_leaves(), with_full_leaves);
  // Every row that a step may write has a page.
  ASSERT_EQ(sequencer_.sequences().closing(), closed_.size());
  for (const auto& [id, open] : open_) {
    const Sequence& s = table.at(id);
    ASSERT_EQ(sequencer_.steps().open_tokens(id), open.tokens);
    for (std::size_t l = 0; l < s.leaves.size(); ++l) {
      ASSERT_GE(static_cast<std::int64_t>(s.leaves[l].pages.size()),
                pages_for(rows_in(l, s.length + open.tokens, table.leaf_tokens())));
    }
  }
}

void SequencerModel::check_pages() const {
  const SequenceTable& table = sequencer_.ledger().table();
  std::vector<std::set<std::int32_t>> used(sequencer_.ledger().pools().size());
  std::vector<std::int64_t> reserved(used.size(), 0);
  std::vector<const Sequence*> holders;  // including ended sequences until they are released
  for (const auto& entry : expected_) holders.push_back(&table.at(entry.first));
  for (const Closed& closed : closed_) holders.push_back(&closed.sequence);
  for (const Sequence* holder : holders) {
    const Sequence& s = *holder;
    for (std::size_t l = 0; l < s.leaves.size(); ++l) {
      const Leaf& leaf = s.leaves[l];
      const auto owner = static_cast<std::size_t>(leaf.owner);
      for (const std::int32_t page : leaf.pages) {
        ASSERT_GE(page, 0);
        ASSERT_LT(page, config_.pages_per_worker);
        ASSERT_TRUE(used.at(owner).insert(page).second)
            << "page " << page << " of worker " << owner << " has two owners";
      }
      const auto have = static_cast<std::int64_t>(leaf.pages.size());
      ASSERT_GE(have, pages_for(rows_in(l, s.length, table.leaf_tokens())));
      const std::int64_t most = pages_for(rows_in(l, s.limit_tokens, table.leaf_tokens()));
      ASSERT_LE(have, most);
      reserved.at(owner) += most - have;
    }
  }
  for (const RunningMove& move : sequencer_.moves().running()) {
    ASSERT_EQ(move.to_pages.size(), move.from_pages.size());
    for (const std::int32_t page : move.to_pages) {
      ASSERT_TRUE(used.at(static_cast<std::size_t>(move.move.to)).insert(page).second)
          << "page " << page << " of a move has two owners";
    }
    reserved.at(static_cast<std::size_t>(move.move.to)) += move.promised;
  }
  for (std::size_t w = 0; w < used.size(); ++w) {
    const PagePool& pool = sequencer_.ledger().pools()[w];
    ASSERT_EQ(pool.total(), config_.pages_per_worker);
    if (sequencer_.copies().size() > 0) continue;  // their pages stay used until they are made
    ASSERT_EQ(pool.used(), static_cast<std::int64_t>(used[w].size())) << "worker " << w;
    ASSERT_EQ(pool.reserved(), reserved[w]) << "worker " << w;
    ASSERT_GE(pool.available(), 0);
    ASSERT_EQ(sequencer_.ledger().load().workers()[w].available_pages, pool.available());
    for (const std::int32_t page : used[w]) ASSERT_EQ(pool.reference_count(page), 1);
  }
}

void SequencerModel::check_loads() const {
  const SequenceTable& table = sequencer_.ledger().table();
  std::vector<WorkerLoad> loads(sequencer_.ledger().load().workers().size());
  for (const auto& [id, expected] : expected_) {
    const Sequence& s = table.at(id);
    for (std::size_t l = 0; l < s.leaves.size(); ++l) {
      loads.at(static_cast<std::size_t>(s.leaves[l].owner)).tokens +=
          rows_in(l, s.length, table.leaf_tokens());
    }
    ++loads.at(static_cast<std::size_t>(s.home)).homes;
  }
  for (std::size_t w = 0; w < loads.size(); ++w) {
    ASSERT_EQ(sequencer_.ledger().load().workers()[w].tokens, loads[w].tokens) << "worker " << w;
    ASSERT_EQ(sequencer_.ledger().load().workers()[w].homes, loads[w].homes) << "worker " << w;
  }
}

}  // namespace tributary
