// A pool that decodes the same tokens again and again, while leaves of its sequences move between
// the workers or do not.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "core/pool/pool_worker.h"
#include "core/sequencer/move_schedule.h"
#include "core/sequencer/sequencer.h"
#include "deploy/app/replay/synthetic_tokens.h"

namespace tributary::bench {

/// The last full leaves of a sequence that move together.
inline constexpr int kMoveLeaves = 2;

struct MovingPoolConfig {
  AttentionShape attention;
  int layers = 1;
  std::vector<std::int64_t> prompts;  // tokens, by sequence
  int steps = 100;                    // of a phase: each sequence grows by so many tokens
  int leaf_tokens = 2048;
};

/// A client of generated rows and queries, which keeps the digest of all outputs.
class MovingClient final : public PoolClient {
 public:
  MovingClient(const AttentionShape& shape, Backend& backend)
      : tokens_(shape, /*seed=*/1, /*canary_rate=*/0), backend_(backend) {}

  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

  [[nodiscard]] SyntheticTokens& tokens() noexcept { return tokens_; }
  [[nodiscard]] std::uint64_t digest() const noexcept { return tokens_.digest().value(); }

 private:
  SyntheticTokens tokens_;
  Backend& backend_;
};

/// The figures of one phase.
struct PhaseFigures {
  std::vector<double> step_us;
  double seconds = 0;
  double copied_bytes = 0;
};

/// All ranks construct it together; rank 0 runs phases, the others follow.
///
/// A sequence lies on one worker at first. Its last full leaves travel: they go from the worker
/// with the most tokens to the one with the fewest, so that phases with moves and phases without
/// find the same kind of placement.
class MovingPool {
 public:
  /// Throws kInvalidArgument for fewer than two workers, or if no sequence has a full leaf.
  MovingPool(const MovingPoolConfig& config, Backend& backend, Communicator& communicator);

  /// Rank 0: drops what earlier phases decoded and decodes it again; a round a layer, as a tier's
  /// leader runs them, the copies of the schedule of moves in its orders. Null: nothing moves.
  PhaseFigures run(MoveSchedule* move_schedule);
  /// Rank 0: for all phases of one bound, as a leader has one: it learns how fast copies are. The
  /// pool outlives it.
  [[nodiscard]] MoveSchedule make_mover(double move_bytes_per_s);
  /// Rank 0: bytes a second of orders that hold nothing but copies, the median; all leaves that
  /// travel have moved then.
  double copy_alone();
  /// Rank 0: the last call; the others return from follow().
  void stop();
  /// The others: takes part until rank 0 stops.
  void follow();
  /// All ranks, at the end: the digest of each phase. They are equal, or a move changed a bit.
  [[nodiscard]] std::vector<std::uint64_t> digests() const;

  /// Rank 0: moves that came to their end.
  [[nodiscard]] std::uint64_t completed_moves() const {
    return sequencer_.moves().totals().completed;
  }

 private:
  void admit();
  void step(MoveSchedule* move_schedule);
  void order_copies(MoveSchedule& move_schedule);
  bool begin_move();
  RoundReport lead(bool stop = false);
  RoundReport perform(const Order& order);
  [[nodiscard]] std::size_t page_copy_bytes() const;

  MovingPoolConfig config_;
  Backend& backend_;
  Communicator& communicator_;
  MovingClient client_;
  IngestTable ingest_;
  Worker worker_;
  Sequencer sequencer_;  // of rank 0
  std::vector<SequenceId> ids_;
  std::mt19937 random_{1};
  int rounds_ = 0;  // of this phase so far
  std::uint64_t digest_before_ = 0;
  std::vector<std::uint64_t> digests_;  // of this rank's sequences, by phase
};

}  // namespace tributary::bench
