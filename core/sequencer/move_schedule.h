// Moves leaves in the background: asks the planner what to move, and puts no more page copies into
// orders than a bound on bytes per second permits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/base/deadline.h"
#include "core/placement/move_planner.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

struct MoveScheduleConfig {
  double bytes_per_s = 0;           // of all copies together, long-term; 0: never moves
  std::size_t page_copy_bytes = 0;  // of a PageCopy; at least 1
  MovePlannerConfig planner;
};

/// Around each order:
///
///   move_schedule.prepare(now); order = sequencer.take_order(); ...;
///   sequencer.order_ended(ok); move_schedule.order_ended(report.copy_us);
class MoveSchedule {
 public:
  /// `sequencer` outlives the schedule. Throws kInvalidArgument for values out of range.
  MoveSchedule(const MoveScheduleConfig& config, Sequencer& sequencer);

  /// Begins moves, of a plan that is made when there is none and none is under way, and orders as
  /// many copies of them as an order may hold.
  void prepare(Time now);
  /// How long the copies of the last order took, on the slowest worker (RoundReport): later orders
  /// hold no more than takes a few milliseconds, and all of them no more than takes a fifth of the
  /// time. 0: unknown, nothing is learnt.
  void order_ended(double copy_us);
  /// When an order is worth its while if nothing else needs one; Time::max() if nothing moves, and
  /// no move was completed since prepare().
  [[nodiscard]] Time next_event() const;

 private:
  void earn(Time now);
  [[nodiscard]] double most_credit() const;
  [[nodiscard]] double rate() const;
  bool begin_next();
  void plan(Time now);
  [[nodiscard]] MovePlan drain() const;

  MoveScheduleConfig config_;
  LeafMoves& moves_;
  const PoolLedger& ledger_;
  double most_credit_ = 0;  // bytes, whatever the speed
  double credit_ = 0;       // bytes that may be copied now
  Time earned_{};           // up to when
  double ordered_ = 0;      // bytes of the order that has not ended
  // Sums over the last orders; older ones count less.
  double copied_bytes_ = 0;
  double copied_us_ = 0;
  std::deque<LeafMove> planned_;
  Time planned_at_{};
  std::uint64_t planned_turnover_ = 0;
  std::uint64_t completed_ = 0;  // moves, when the last order was prepared
};

/// Returns the configuration of a pool's leader. `row_bytes` is the size of a latent row.
[[nodiscard]] MoveScheduleConfig move_schedule_config(double bytes_per_s, std::size_t row_bytes);

}  // namespace tributary
