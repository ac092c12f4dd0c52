// One sequence while it is being placed: the pages that are left, and the owners found so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/placement/pool_load.h"

namespace tributary {

/// The runs of neighbours with one owner.
[[nodiscard]] std::vector<LeafRun> runs_of(std::span<const std::int32_t> leaf_owner);

/// Gives the leaves of one sequence to workers, without a worker ever getting a leaf whose pages it
/// lacks. The prompt is placed first (one call), then the growth (one call). A call returns false
/// when the pages do not suffice; the object must not be used after that.
///
/// Leaves are whole and equal except the last. Where that is placed last, taking any worker that
/// has the pages never blocks a later leaf: pack_in_turn() and reserve_where_free() together fail
/// only where no assignment exists, and so do pack_evenly() and reserve_evenly().
class Packing {
 public:
  Packing(std::span<const WorkerLoad> loads, std::int64_t prompt_tokens, std::int64_t limit_tokens,
          std::int64_t leaf_tokens);

  /// Gives everything, growth included, to one worker.
  [[nodiscard]] bool pack_single(std::int32_t worker);
  /// Cuts aligned runs of about leaves / workers. Each goes to the worker that holds least of this
  /// sequence; of several, to the least loaded.
  [[nodiscard]] bool pack_evenly();
  /// Gives these runs of the prompt's leaves, in order and complete, to their workers.
  [[nodiscard]] bool pack_runs(std::span<const LeafRun> runs);
  /// Makes as few runs as pages allow: each goes to the worker with the most pages, until it is
  /// full.
  [[nodiscard]] bool pack_in_turn();

  /// Reserves growth on the workers that hold least of this sequence.
  [[nodiscard]] bool reserve_evenly();
  /// Reserves growth where pages are plentiful: load decides when the leaf is opened.
  [[nodiscard]] bool reserve_where_free();

  /// Pages of the prompt's leaves up to the limit, and of all leaves.
  [[nodiscard]] std::int64_t prompt_pages() const { return block(0, prompt_leaves_).pages; }
  [[nodiscard]] std::int64_t limit_pages() const { return block(0, limit_leaves_).pages; }
  /// Owners of all leaves up to the limit; those of the prompt come first.
  [[nodiscard]] const std::vector<std::int32_t>& leaf_owner() const noexcept { return owner_; }
  [[nodiscard]] std::size_t prompt_leaves() const noexcept {
    return static_cast<std::size_t>(prompt_leaves_);
  }

 private:
  struct Worker {
    std::int64_t tokens;  // cached tokens, this sequence's included
    std::int64_t pages;   // available
    std::int64_t own;     // tokens of this sequence, planned ones included
  };

  /// Leaves [first, end).
  struct Block {
    std::int64_t first, end;
    std::int64_t tokens;  // of the prompt
    std::int64_t pages;   // up to the limit
  };

  [[nodiscard]] Block block(std::int64_t first, std::int64_t end) const;
  void take(std::size_t worker, const Block& block);
  /// Index of the worker that has the pages and the smallest key; kNobody if none has the pages.
  template <typename Key>
  [[nodiscard]] std::size_t smallest(std::int64_t pages, Key key) const;
  [[nodiscard]] bool pack_run(const LeafRun& run);
  [[nodiscard]] bool place_evenly(std::int64_t first, std::int64_t size);

  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  std::int64_t prompt_tokens_, limit_tokens_, leaf_tokens_;
  std::int64_t prompt_leaves_, limit_leaves_;
  std::vector<Worker> workers_;
  std::vector<std::int32_t> owner_;
};

}  // namespace tributary
