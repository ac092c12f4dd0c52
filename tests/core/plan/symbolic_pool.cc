#include "tests/core/plan/symbolic_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/hash.h"
#include "tests/core/plan/merge_interpreter.h"

namespace tributary {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

std::int64_t before(const std::vector<std::int64_t>& counts, std::size_t rank) {
  return sum(std::span(counts).first(rank));
}

/// Moves blocks between ranks as a communicator would: `sent(from, to)` gives the records of one
/// block, in order; they land from `recv_begin(to)` on in the arena that `arena(to)` gives, blocks
/// in rank order.
template <typename Record, typename Sent, typename Arena>
void deliver(const std::vector<RankPlan>& plans,
             const std::vector<std::int64_t> RankPlan::*recv_counts, const Sent& sent,
             const Arena& arena) {
  for (std::size_t to = 0; to < plans.size(); ++to) {
    auto [records, next] = arena(to);
    for (std::size_t from = 0; from < plans.size(); ++from) {
      const std::vector<Record> block = sent(from, to);
      ASSERT_EQ(static_cast<std::int64_t>(block.size()), (plans[to].*recv_counts)[from])
          << "from " << from << " to " << to;
      for (const Record& record : block) {
        ASSERT_LT(next, static_cast<std::int64_t>(records->size()));
        ASSERT_FALSE((*records)[at(next)].has_value());
        (*records)[at(next++)] = record;
      }
    }
  }
}

}  // namespace

std::uint64_t symbolic_row(std::int64_t tag, std::int64_t position) {
  return mix64(mix64(static_cast<std::uint64_t>(tag) + 1) ^ static_cast<std::uint64_t>(position));
}

std::uint64_t symbolic_query(std::int64_t tag, std::int64_t position) {
  return mix64(symbolic_row(tag, position));
}

std::uint64_t symbolic_attend(std::uint64_t state, std::uint64_t query, std::uint64_t row) {
  return mix64(state ^ mix64(query + 3 * row) ^ kGoldenGamma);
}

std::uint64_t symbolic_merge(std::uint64_t left, std::uint64_t right) {
  if (left == 0) return right;
  return right == 0 ? left : mix64(3 * left + (right >> 7) + kGoldenGamma);
}

std::uint64_t symbolic_state(std::int64_t tag, std::int64_t position, int leaf_tokens) {
  const std::uint64_t query = symbolic_query(tag, position);
  const auto leaf = [&](std::int64_t l) {
    std::uint64_t state = 0;
    for (std::int64_t p = l * leaf_tokens; p < (l + 1) * leaf_tokens && p <= position; ++p) {
      state = symbolic_attend(state, query, symbolic_row(tag, p));
    }
    return state;
  };
  return canonical_tree(position / leaf_tokens + 1, leaf, symbolic_merge);
}

StepItem SymbolicPool::add(SequenceId id, std::int64_t length, std::int32_t tokens,
                           std::int32_t home, const std::vector<std::int32_t>& owner,
                           std::mt19937& random) {
  free_pages_.resize(memory_.size());
  pages_.resize(memory_.size());
  const auto take_page = [&](std::int32_t worker) {
    auto& free = free_pages_[at(worker)];
    if (free.empty()) {
      free.resize(64);
      std::iota(free.begin(), free.end(), pages_[at(worker)]);
      std::shuffle(free.begin(), free.end(), random);
      pages_[at(worker)] += 64;
    }
    const std::int32_t page = free.back();
    free.pop_back();
    return page;
  };
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  const auto pages_at = [&](std::size_t leaf, std::int64_t rows) {
    const std::int64_t begin = static_cast<std::int64_t>(leaf) * leaf_tokens;
    return ceil_div(std::clamp<std::int64_t>(rows - begin, 0, leaf_tokens), kPageTokens);
  };
  Sequence s{.id = id,
             .epoch = 1 + static_cast<std::uint32_t>(random() % 3),
             .home = home,
             .tag = static_cast<std::int64_t>(id),
             .prompt_tokens = length,
             .limit_tokens = static_cast<std::int64_t>(owner.size()) * leaf_tokens,
             .length = length,
             .leaves = {}};
  for (std::size_t l = 0; l < owner.size(); ++l) {
    s.leaves.push_back({owner[l], {}});
    for (std::int64_t p = 0; p < pages_at(l, length); ++p) {
      s.leaves[l].pages.push_back(take_page(owner[l]));
    }
  }
  const StepItem item = next_item(s, tokens);
  table_.apply(AdmitOp{std::move(s)});
  for (std::int64_t p = 0; p < length; ++p) {
    const auto [worker, slot] = place_of(id, p);
    memory(worker)[slot] = symbolic_row(static_cast<std::int64_t>(id), p);
  }
  for (std::size_t l = 0; l < owner.size(); ++l) {
    ExtendOp op{id, static_cast<std::int32_t>(l), owner[l], {}};
    for (std::int64_t p = pages_at(l, length); p < pages_at(l, length + tokens); ++p) {
      op.pages.push_back(take_page(owner[l]));
    }
    if (!op.pages.empty()) table_.apply(op);
  }
  return item;
}

std::pair<std::int32_t, SymbolicPool::Slot> SymbolicPool::place_of(SequenceId id,
                                                                   std::int64_t position) const {
  const Leaf& leaf = table_.at(id).leaves.at(at(position / table_.leaf_tokens()));
  const std::int64_t row = position % table_.leaf_tokens();
  return {leaf.owner,
          {leaf.pages.at(at(row / kPageTokens)), static_cast<std::int32_t>(row % kPageTokens)}};
}

SymbolicRound::SymbolicRound(SymbolicPool& pool, std::vector<StepItem> batch, Exchange exchange)
    : pool_(pool), batch_(std::move(batch)), exchange_(exchange) {
  const int workers = pool.workers();
  build_routing(pool.table(), batch_, workers, routing_);
  plans_.resize(at(workers));
  for (int rank = 0; rank < workers; ++rank) {
    PlanBuilder builder(workers, rank, pool.table().leaf_tokens());
    RankPlan& plan = plans_[at(rank)];
    builder.build(routing_, exchange, plan);
    builder.build(routing_, exchange, plan);  // reuses what the first build left behind
  }
}

void SymbolicRound::run(std::mt19937& random) {
  const auto failed = [] { return testing::Test::HasFatalFailure(); };
  ranks_.assign(plans_.size(), {});
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    ranks_[r].tokens.resize(at(plans_[r].total_tokens()));
    ranks_[r].states.resize(at(plans_[r].total_states()));
  }
  check_shape();
  if (failed()) return;
  write_tokens();
  if (failed()) return;
  exchange_tokens();
  if (failed()) return;
  append();
  if (failed()) return;
  attend();
  for (std::size_t r = 0; r < plans_.size() && !failed(); ++r) {
    run_merges(plans_[r].local_merges, ranks_[r].states, symbolic_merge, random);
  }
  if (failed()) return;
  exchange_states();
  for (std::size_t r = 0; r < plans_.size() && !failed(); ++r) {
    run_merges(plans_[r].home_merges, ranks_[r].states, symbolic_merge, random);
  }
  if (failed()) return;
  check_results();
}

/// The records sent are those that the volume predicts, and all ranks know whether there are any.
void SymbolicRound::check_shape() const {
  const ExchangeVolume volume = exchange_volume(routing_, pool_.workers(), exchange_);
  const bool gather = exchange_ == Exchange::kAllGather;
  const auto sent = [&](const std::vector<std::int64_t>& counts, std::size_t rank) {
    return gather ? counts[rank] * (pool_.workers() - 1) : sum(counts) - counts[rank];
  };
  std::int64_t tokens = 0;
  std::int64_t states = 0;
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    const RankPlan& plan = plans_[r];
    ASSERT_EQ(plan.exchange, exchange_);
    for (const auto* counts : {&plan.token_send_counts, &plan.token_recv_counts,
                               &plan.state_send_counts, &plan.state_recv_counts}) {
      ASSERT_EQ(counts->size(), plans_.size());
    }
    ASSERT_EQ(plan.tokens_travel, plans_[0].tokens_travel);
    ASSERT_EQ(plan.states_travel, plans_[0].states_travel);
    if (gather) {
      ASSERT_EQ(plan.token_recv_counts, plans_[0].token_recv_counts);
      ASSERT_EQ(plan.state_recv_counts, plans_[0].state_recv_counts);
      ASSERT_EQ(plan.sent_states, plan.state_recv_counts[r]);
    } else {
      ASSERT_EQ(plan.token_send_counts[r], 0);
      ASSERT_EQ(plan.state_send_counts[r], 0);
      ASSERT_EQ(plan.sent_states, sum(plan.state_send_counts));
    }
    ASSERT_EQ(plan.received_tokens, sum(plan.token_recv_counts));
    ASSERT_EQ(plan.received_states, sum(plan.state_recv_counts));
    tokens += gather ? sent(plan.token_recv_counts, r) : sent(plan.token_send_counts, r);
    states += gather ? sent(plan.state_recv_counts, r) : sent(plan.state_send_counts, r);
  }
  ASSERT_EQ(tokens, volume.token_records);
  ASSERT_EQ(states, volume.state_records);
  ASSERT_EQ(plans_[0].tokens_travel, tokens > 0);
  ASSERT_EQ(plans_[0].states_travel, states > 0);
}

void SymbolicRound::write_tokens() {
  std::set<std::int32_t> homed_anywhere;
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    std::int64_t written = 0;
    for (const HomedItem& item : plans_[r].homed) {
      ASSERT_TRUE(homed_anywhere.insert(item.item).second);
      const Sequence& s = pool_.table().at(batch_.at(at(item.item)).id);
      ASSERT_EQ(item.id, s.id);
      ASSERT_EQ(item.tag, s.tag);
      ASSERT_EQ(item.position, s.length);
      ASSERT_EQ(item.tokens, batch_[at(item.item)].tokens);
      ASSERT_EQ(static_cast<std::size_t>(s.home), r);
      for (std::int32_t t = 0; t < item.tokens; ++t, ++written) {
        ASSERT_LT(item.token_record + t, plans_[r].local_tokens);
        auto& record = ranks_[r].tokens.at(at(item.token_record + t));
        ASSERT_FALSE(record.has_value());
        record = Token{symbolic_query(s.tag, s.length + t), symbolic_row(s.tag, s.length + t)};
      }
    }
    ASSERT_EQ(written, plans_[r].local_tokens);
  }
  ASSERT_EQ(homed_anywhere.size(), batch_.size());
}

void SymbolicRound::exchange_tokens() {
  if (!plans_[0].tokens_travel) return;
  const auto sent = [&](std::size_t from, std::size_t to) {
    const RankPlan& plan = plans_[from];
    std::vector<Token> block;
    if (exchange_ == Exchange::kAllGather) {
      for (std::int64_t i = 0; i < plan.token_recv_counts[from]; ++i) {
        block.push_back(ranks_[from].tokens.at(at(i)).value());
      }
      return block;
    }
    const std::int64_t first = before(plan.token_send_counts, to);
    for (std::int64_t i = 0; i < plan.token_send_counts[to]; ++i) {
      const std::int64_t record = plan.token_send_index.at(at(first + i));
      block.push_back(ranks_[from].tokens.at(at(record)).value());
    }
    return block;
  };
  deliver<Token>(plans_, &RankPlan::token_recv_counts, sent, [&](std::size_t to) {
    return std::pair(&ranks_[to].tokens, plans_[to].local_tokens);
  });
}

void SymbolicRound::append() {
  std::set<std::pair<std::int32_t, std::int64_t>> appended;  // item, position
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    for (const AppendTask& task : plans_[r].appends) {
      const auto& record = ranks_[r].tokens.at(at(task.source));
      ASSERT_TRUE(record.has_value());
      const StepItem& item = batch_.at(at(task.item));
      const Sequence& s = pool_.table().at(item.id);
      std::int64_t position = s.length;
      while (position < s.length + item.tokens && symbolic_row(s.tag, position) != record->row) {
        ++position;
      }
      ASSERT_LT(position, s.length + item.tokens) << "the record does not belong to the item";
      ASSERT_TRUE(appended.insert({task.item, position}).second);
      ASSERT_EQ(pool_.place_of(s.id, position),
                std::pair(static_cast<std::int32_t>(r), SymbolicPool::Slot(task.page, task.slot)));
      pool_.memory(static_cast<int>(r))[{task.page, task.slot}] = record->row;
    }
  }
  std::size_t expected = 0;
  for (const StepItem& item : batch_) expected += at(item.tokens);
  ASSERT_EQ(appended.size(), expected);
}

void SymbolicRound::attend() {
  const std::int64_t leaf_tokens = pool_.table().leaf_tokens();
  std::set<std::pair<std::int32_t, std::int64_t>> attended;  // item, leaf
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    const RankPlan& plan = plans_[r];
    std::int64_t work = 0;
    for (const LeafTask& task : plan.tasks) {
      const StepItem& item = batch_.at(at(task.item));
      const Sequence& s = pool_.table().at(item.id);
      const std::int64_t leaf = task.leaf_begin / leaf_tokens;
      ASSERT_EQ(task.leaf_begin % leaf_tokens, 0);
      ASSERT_TRUE(attended.insert({task.item, leaf}).second);
      ASSERT_EQ(task.tokens, item.tokens);
      ASSERT_EQ(task.query_position, s.length);
      ASSERT_EQ(task.rows, std::min(leaf_tokens, s.length + item.tokens - leaf * leaf_tokens));
      work += std::int64_t{task.rows} * task.tokens;
      for (std::int32_t t = 0; t < task.tokens; ++t) {
        const auto& token = ranks_[r].tokens.at(at(task.query + t));
        ASSERT_TRUE(token.has_value());
        ASSERT_EQ(token->query, symbolic_query(s.tag, s.length + t));
        const std::int64_t visible =
            std::clamp<std::int64_t>(task.query_position + t + 1 - task.leaf_begin, 0, task.rows);
        std::uint64_t state = 0;
        for (std::int64_t row = 0; row < visible; ++row) {
          const std::int32_t page = plan.block_table.at(at(task.first_page + row / kPageTokens));
          const auto& memory = pool_.memory(static_cast<int>(r));
          const auto found = memory.find({page, static_cast<std::int32_t>(row % kPageTokens)});
          ASSERT_NE(found, memory.end()) << "page " << page << " holds no row " << row;
          state = symbolic_attend(state, token->query, found->second);
        }
        ASSERT_LT(task.state + t, plan.total_states());
        const bool in_received =
            task.state + t >= plan.recv_begin() && task.state + t < plan.out_begin();
        ASSERT_FALSE(in_received);
        auto& record = ranks_[r].states.at(at(task.state + t));
        ASSERT_FALSE(record.has_value()) << "state record " << task.state + t << " written twice";
        record = state;
      }
    }
    ASSERT_EQ(work, routing_.worker_rows.at(r));
  }
  std::size_t expected = 0;
  for (const StepItem& item : batch_) {
    expected += at(ceil_div(pool_.table().at(item.id).length + item.tokens, leaf_tokens));
  }
  ASSERT_EQ(attended.size(), expected);
}

void SymbolicRound::exchange_states() {
  if (!plans_[0].states_travel) return;
  // Read before anything is delivered: sending does not change what a rank has.
  std::vector<std::vector<std::uint64_t>> send(plans_.size());
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    for (std::int64_t i = 0; i < plans_[r].sent_states; ++i) {
      const auto& record = ranks_[r].states.at(at(plans_[r].send_begin() + i));
      ASSERT_TRUE(record.has_value()) << "state " << i << " of rank " << r << " was not computed";
      send[r].push_back(*record);
    }
  }
  const auto sent = [&](std::size_t from, std::size_t to) -> std::vector<std::uint64_t> {
    if (exchange_ == Exchange::kAllGather) return send[from];
    const auto first = send[from].begin() + before(plans_[from].state_send_counts, to);
    return {first, first + plans_[from].state_send_counts[to]};
  };
  deliver<std::uint64_t>(plans_, &RankPlan::state_recv_counts, sent, [&](std::size_t to) {
    return std::pair(&ranks_[to].states, plans_[to].recv_begin());
  });
}

void SymbolicRound::check_results() const {
  for (std::size_t r = 0; r < plans_.size(); ++r) {
    std::int64_t results = 0;
    for (const HomedItem& item : plans_[r].homed) {
      for (std::int32_t t = 0; t < item.tokens; ++t, ++results) {
        ASSERT_GE(item.state + t, plans_[r].out_begin());
        const auto& state = ranks_[r].states.at(at(item.state + t));
        ASSERT_TRUE(state.has_value());
        ASSERT_EQ(*state, symbolic_state(item.tag, item.position + t, pool_.table().leaf_tokens()))
            << "item " << item.item << ", token " << t;
      }
    }
    ASSERT_EQ(results, plans_[r].out_states);
  }
}

}  // namespace tributary
