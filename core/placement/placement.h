// Who holds what: the home of a sequence and the owner of each of its leaves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tributary {

/// `single`: whole sequences on one worker (data parallel). `all`: every sequence on as many
/// workers as it has leaves (sequence parallel). `auto`: per sequence, what makes rounds short.
enum class SpreadPolicy { kAuto, kSingle, kAll };

/// `auto`, `single`, `all`; throws kInvalidArgument with the list.
[[nodiscard]] SpreadPolicy parse_spread_policy(std::string_view name);
[[nodiscard]] std::string_view spread_policy_name(SpreadPolicy policy) noexcept;

/// What `auto` weighs, in nanoseconds on one worker. Only the ratios matter. The defaults are those
/// of 128 heads at 2.8 TFLOP/s (0.28 MFLOP a token) and 100 Gbit/s (263 kB a root).
struct PlacementCosts {
  double attend_token_ns = 100;    // attention of one query token over one cached token; > 0
  double inbound_root_ns = 20000;  // receiving and merging one subtree root at a home; >= 0
  double home_ns = 40000;          // a home's other work for one sequence: rows, projections; >= 0
};

struct PlacementConfig {
  int workers = 1;         // >= 1
  int leaf_tokens = 2048;  // a power-of-two number of pages
  PlacementCosts costs;
  /// A worker may take this share of its mean load from one sequence whatever a root costs;
  /// 0 .. 1. More: fewer roots, but deeper holes when a long sequence leaves.
  double extent_share = 0.05;
  /// Scale of the run of tokens for which a round is predicted to be shortest (see placement.cc);
  /// >= 0. On a chat trace (64 workers, 256 sequences) 1.8 makes the mean round 7% shorter than 0.8
  /// does, but the busiest worker holds 1.08 times the mean (99th percentile 1.17) instead of 1.04
  /// (1.09).
  double coarseness = 0.8;
};

/// One worker as placement sees it. Kept by the sequencer.
struct WorkerLoad {
  /// Cached tokens of running sequences. Planned growth is not part of it: on a chat trace that
  /// balances no better (with all of it, worse), since limits are far from what is decoded.
  std::int64_t tokens = 0;
  std::int64_t available_pages = 0;  // neither used nor reserved
  std::int64_t homes = 0;            // running sequences whose home it is
  std::int64_t inbound_roots = 0;    // subtree roots that it receives as a home in a round of all
};

struct Assignment {
  /// A worker that owns a leaf of the prompt.
  std::int32_t home = 0;
  /// Owner of leaf i, for every leaf up to the sequence's limit; those beyond the prompt are
  /// where its growth is reserved.
  std::vector<std::int32_t> leaf_owner;
};

/// Decisions depend on the arguments alone: the same calls give the same owners everywhere.
class Placement {
 public:
  /// Throws kInvalidArgument for a value outside its range.
  explicit Placement(const PlacementConfig& config);

  /// Places a new sequence of `prompt_tokens` that may grow to `limit_tokens`
  /// (1 <= prompt_tokens <= limit_tokens). Pages needed are whole: a worker needs
  /// ceil(tokens / kPageTokens) of each of its leaves, the last clipped at the limit.
  /// No value when the workers have not enough available pages now: for `single` when no worker
  /// holds all, else when no assignment of whole leaves to workers exists.
  /// Throws kInvalidArgument for lengths out of order or other than config.workers loads.
  [[nodiscard]] std::optional<Assignment> place(std::int64_t prompt_tokens,
                                                std::int64_t limit_tokens, SpreadPolicy policy,
                                                std::span<const WorkerLoad> loads) const;

  /// Owner for the leaf that a sequence is about to open: `reserved_owner`, where its pages are
  /// promised, or a worker with `leaf_pages` available pages that makes rounds shorter.
  /// `spread_tokens[w]`: tokens of this sequence on worker w. Throws kInvalidArgument as above.
  [[nodiscard]] std::int32_t place_leaf(std::int32_t reserved_owner, std::int64_t leaf_pages,
                                        std::int32_t home,
                                        std::span<const std::int64_t> spread_tokens,
                                        SpreadPolicy policy,
                                        std::span<const WorkerLoad> loads) const;

 private:
  [[nodiscard]] std::int32_t choose_home(std::span<const std::int32_t> prompt_owner,
                                         std::span<const WorkerLoad> loads) const;
  void check_loads(std::span<const WorkerLoad> loads) const;

  PlacementConfig config_;
};

}  // namespace tributary
