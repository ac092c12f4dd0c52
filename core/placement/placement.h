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

/// What `auto` weighs, in nanoseconds on one worker. Only the ratio matters.
struct PlacementCosts {
  double attend_token_ns = 100;   // attention of one query token over one cached token
  double inbound_root_ns = 20000;  // receiving and merging one subtree root at a home
};

struct PlacementConfig {
  int workers = 1;
  int leaf_tokens = 2048;
  PlacementCosts costs;
  /// An extent holds at most this share of a worker's mean load (and at least one leaf).
  double extent_share = 0.05;
};

/// One worker as placement sees it. Kept by the sequencer.
struct WorkerLoad {
  std::int64_t tokens = 0;          // cached tokens of running sequences
  std::int64_t available_pages = 0;  // neither used nor reserved
  std::int64_t homes = 0;            // running sequences whose home it is
  std::int64_t inbound_roots = 0;    // subtree roots that it receives as a home in a round of all
};

struct Assignment {
  int home = 0;
  /// Owner of leaf i, for every leaf up to the sequence's limit; those beyond the prompt are
  /// where its growth is reserved.
  std::vector<std::int32_t> leaf_owner;
};

class Placement {
 public:
  explicit Placement(const PlacementConfig& config);

  /// Places a new sequence of `prompt_tokens` that may grow to `limit_tokens`
  /// (1 <= prompt_tokens <= limit_tokens). Pages needed are whole: a worker needs
  /// ceil(tokens / kPageTokens) of each of its leaves, the last clipped at the limit.
  /// No value when the workers have not enough available pages now. Deterministic.
  [[nodiscard]] std::optional<Assignment> place(std::int64_t prompt_tokens,
                                                std::int64_t limit_tokens, SpreadPolicy policy,
                                                std::span<const WorkerLoad> loads) const;

  /// Owner for the leaf that a sequence is about to open: `reserved_owner`, where its pages are
  /// promised, or a worker with `leaf_pages` available pages that makes rounds shorter.
  /// `spread_tokens[w]`: tokens of this sequence on worker w.
  [[nodiscard]] std::int32_t place_leaf(std::int32_t reserved_owner, std::int64_t leaf_pages,
                                        int home, std::span<const std::int64_t> spread_tokens,
                                        SpreadPolicy policy,
                                        std::span<const WorkerLoad> loads) const;

 private:
  PlacementConfig config_;
};

}  // namespace tributary
