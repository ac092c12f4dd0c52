#include "core/sequencer/move_schedule.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/drain_planner.h"

namespace tributary {
namespace {

/// Copies lie between rounds, so an order holds no more of them than this is worth: at the full
/// rate of a 10 GB/s link they hold up a round for as long, at a tenth of it for a tenth.
constexpr auto kMostCredit = std::chrono::milliseconds(10);
/// A rate may exceed what the machine copies, and then they would hold up a round for longer than
/// that. So an order holds no more than takes this long at the speed of the last ones.
constexpr double kMostCopyUs = 5000;
/// Copies get no more than this share of the time, however short the rounds between them are: a
/// step takes 1.25 times as long at most.
constexpr double kMostShare = 0.2;
/// The weight of the newest order in the measured speed; older ones lose as much.
constexpr double kNewest = 0.25;
/// Nor more than this, whatever the rate: both ends have buffers of that size.
constexpr double kMostOrderBytes = 64 * 0x1p20;
/// The planner is asked again after this when sequences have come or gone: a plan takes the leader
/// up to a few milliseconds.
constexpr auto kPause = std::chrono::milliseconds(20);
/// And after this in any case: lengths change too.
constexpr auto kReplan = std::chrono::seconds(1);

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

MoveSchedule::MoveSchedule(const MoveScheduleConfig& config, Sequencer& sequencer)
    : config_(config), moves_(sequencer.moves()), ledger_(sequencer.ledger()) {
  // Written so that NaN fails.
  if (!(config.bytes_per_s >= 0 && config.bytes_per_s <= 1e15) || config.page_copy_bytes < 1) {
    fail(ErrorCode::kInvalidArgument,
         "moves of {} bytes per second, {} bytes a page copy: expected 0 .. 1e15, at least 1",
         config.bytes_per_s, config.page_copy_bytes);
  }
  most_credit_ = std::max(std::min(config.bytes_per_s * seconds(kMostCredit), kMostOrderBytes),
                          static_cast<double>(config.page_copy_bytes));
}

void MoveSchedule::prepare(Time now) {
  completed_ = moves_.totals().completed;
  if (config_.bytes_per_s == 0) return;
  earn(now);
  // A sequence that came or went may need the pages that the plan would give away.
  if (planned_turnover_ != ledger_.turnover() && now >= planned_at_ + kPause) planned_.clear();
  if (moves_.running().empty()) {
    if (planned_.empty()) plan(now);
    begin_next();
  }
  // All that an order may hold, or nothing: what an order with copies takes for however few would
  // else be paid in every round.
  if (moves_.running().empty() || credit_ < most_credit()) return;
  const auto page_copy = static_cast<double>(config_.page_copy_bytes);
  auto affordable = static_cast<std::int64_t>(credit_ / page_copy);
  std::int64_t copies = 0;
  for (bool begun = true; begun && affordable > 0;) {
    const std::int64_t more = moves_.order_copies(affordable);
    affordable -= more;
    copies += more;
    begun = affordable > 0 && begin_next();  // short ones share an order
  }
  const double bytes = page_copy * static_cast<double>(copies);
  credit_ -= bytes;
  ordered_ += bytes;
}

void MoveSchedule::order_ended(double copy_us) {
  const double bytes = std::exchange(ordered_, 0);
  if (!(bytes > 0 && copy_us > 0)) return;
  copied_bytes_ += bytes - kNewest * copied_bytes_;
  copied_us_ += copy_us - kNewest * copied_us_;
}

/// At least a page copy: it is the least that can be done.
double MoveSchedule::most_credit() const {
  if (copied_us_ == 0) return most_credit_;
  return std::max(std::min(most_credit_, copied_bytes_ / copied_us_ * kMostCopyUs),
                  static_cast<double>(config_.page_copy_bytes));
}

/// Bytes per second: as permitted, and as much of the time as copies may take.
double MoveSchedule::rate() const {
  if (copied_us_ == 0) return config_.bytes_per_s;
  return std::min(config_.bytes_per_s, kMostShare * copied_bytes_ / (copied_us_ * 1e-6));
}

void MoveSchedule::earn(Time now) {
  credit_ += seconds(std::max(now - earned_, Duration::zero())) * rate();
  credit_ = std::min(credit_, most_credit());
  earned_ = now;
}

void MoveSchedule::plan(Time now) {
  const std::uint64_t turnover = ledger_.turnover();
  if (now < planned_at_ + (turnover == planned_turnover_ ? Duration(kReplan) : kPause)) {
    return;
  }
  planned_at_ = now;
  planned_turnover_ = turnover;
  MovePlan moves = drain();
  if (moves.empty()) {
    moves =
        plan_moves(config_.planner, moves_.movable(), ledger_.load(), ledger_.placement().prices());
  }
  planned_.assign(moves.begin(), moves.end());
}

/// Moves off a worker that is being emptied go before moves that only gain.
MovePlan MoveSchedule::drain() const {
  for (std::int32_t w = 0; std::cmp_less(w, ledger_.pools().size()); ++w) {
    if (!ledger_.draining(w)) continue;
    MovePlan moves =
        plan_drain(w, moves_.movable_from(w), ledger_.load(), ledger_.placement().prices());
    if (!moves.empty()) return moves;
  }
  return {};
}

/// A plan is as old as its first moves take: what no longer fits is left out. Returns whether a
/// move has begun.
bool MoveSchedule::begin_next() {
  bool begun = false;
  while (!begun && !planned_.empty()) {
    const LeafMove move = planned_.front();
    // A sequence has one at a time.
    if (std::ranges::any_of(moves_.running(),
                            [&](const RunningMove& m) { return m.move.id == move.id; })) {
      break;
    }
    planned_.pop_front();
    try {
      moves_.begin(move);
      begun = true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      // Has ended, or no pages: the next one.
    }
  }
  // At the end of a plan the next may be due: what it gained may make room for more.
  if (planned_.empty() && !moves_.running().empty()) planned_at_ = {};
  return begun;
}

Time MoveSchedule::next_event() const {
  // The move after one that is done does not wait until something else needs an order.
  const bool next = moves_.totals().completed != completed_;
  if (moves_.running().empty()) return next ? earned_ : Time::max();
  const std::chrono::duration<double> wait(std::max(0.0, most_credit() - credit_) / rate());
  // Not a fraction of a tick too early.
  return earned_ + std::chrono::ceil<Duration>(wait) + Duration(1);
}

MoveScheduleConfig move_schedule_config(double bytes_per_s, std::size_t row_bytes) {
  return {.bytes_per_s = bytes_per_s, .page_copy_bytes = kPageTokens * row_bytes, .planner = {}};
}

}  // namespace tributary
