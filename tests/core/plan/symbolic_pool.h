// A pool without arithmetic: rows, queries and states are hashes of their identities, so that a
// round can be run from its plans alone and every mistake in them shows.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/plan/plan.h"

namespace tributary {

/// The hashes that stand for a token's query, its row, and a state; 0 is the empty state.
[[nodiscard]] std::uint64_t symbolic_row(std::int64_t tag, std::int64_t position);
[[nodiscard]] std::uint64_t symbolic_query(std::int64_t tag, std::int64_t position);
/// The state with one more row; `symbolic_attend(0, query, row)` begins a state.
[[nodiscard]] std::uint64_t symbolic_attend(std::uint64_t state, std::uint64_t query,
                                            std::uint64_t row);
/// Not associative, not commutative; 0 is neutral, as the empty state is.
[[nodiscard]] std::uint64_t symbolic_merge(std::uint64_t left, std::uint64_t right);

/// The canonical state of the token at `position` of sequence `tag`, from the definition.
[[nodiscard]] std::uint64_t symbolic_state(std::int64_t tag, std::int64_t position,
                                           int leaf_tokens);

/// Sequences on workers, and what their pages hold.
class SymbolicPool {
 public:
  SymbolicPool(int workers, int leaf_tokens) : table_(leaf_tokens), memory_(workers) {}

  [[nodiscard]] int workers() const { return static_cast<int>(memory_.size()); }
  [[nodiscard]] const SequenceTable& table() const { return table_; }

  /// Adds a sequence of `length` rows, and of pages for `tokens` more; leaf i belongs to owner[i].
  /// Its tag is its id. Pages come in random order, and no two sequences share one.
  StepItem add(SequenceId id, std::int64_t length, std::int32_t tokens, std::int32_t home,
               const std::vector<std::int32_t>& owner, std::mt19937& random);

  using Slot = std::pair<std::int32_t, std::int32_t>;  // page, slot
  [[nodiscard]] std::map<Slot, std::uint64_t>& memory(int worker) {
    return memory_.at(static_cast<std::size_t>(worker));
  }
  /// Worker, page and slot of a row.
  [[nodiscard]] std::pair<std::int32_t, Slot> place_of(SequenceId id, std::int64_t position) const;

 private:
  SequenceTable table_;
  std::vector<std::map<Slot, std::uint64_t>> memory_;
  std::vector<std::vector<std::int32_t>> free_pages_;  // per worker
  std::vector<std::int32_t> pages_;                    // per worker, so far
};

/// Builds the plans of all ranks and runs them. Fails the test if a plan reads a record that does
/// not exist, overwrites one that is needed, leaves its arenas, sends something else than the peer
/// expects or exchange_volume() predicts, or ends with another state than symbolic_state().
class SymbolicRound {
 public:
  SymbolicRound(SymbolicPool& pool, std::vector<StepItem> batch, Exchange exchange);
  void run(std::mt19937& random);

  [[nodiscard]] const Routing& routing() const { return routing_; }
  [[nodiscard]] const std::vector<RankPlan>& plans() const { return plans_; }

 private:
  struct Token {
    std::uint64_t query = 0, row = 0;
  };
  struct Rank {
    std::vector<std::optional<Token>> tokens;
    std::vector<std::optional<std::uint64_t>> states;
  };

  void check_shape() const;
  void write_tokens();
  void exchange_tokens();
  void append();
  void attend();
  void exchange_states();
  void check_results() const;

  SymbolicPool& pool_;
  std::vector<StepItem> batch_;
  Exchange exchange_;
  Routing routing_;
  std::vector<RankPlan> plans_;
  std::vector<Rank> ranks_;
};

}  // namespace tributary
