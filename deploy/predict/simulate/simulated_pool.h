// One pool of a simulated tier: the real sequencer decides, and the round clock gives the times.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/cost/cost_model.h"
#include "core/plan/plan.h"
#include "core/sequencer/admit_request.h"
#include "core/sequencer/move_schedule.h"
#include "core/sequencer/sequencer.h"
#include "deploy/predict/simulate/round_clock.h"

namespace tributary {

struct SimulatedPoolConfig {
  int workers = 8;
  std::int32_t pages_per_worker = 1;
  CostModelConfig cost;  // placement minimises it, and rounds take their times from it
  Exchange exchange = Exchange::kAuto;
  /// Tokens of a sequence that its sequencer commits at once, 1 .. kMaxStepTokens: the simulation
  /// is that much faster, and the loads that placement sees are that much behind. The time of a
  /// round is exact: leaves open and sequences end at their very token.
  int commit_tokens = kMaxStepTokens;
  SequencerOptions sequencer = {};
};

/// The full plan's result beside the clock's, for one step; see SimulatedPool::check.
struct StepCheck {
  RoundTime clock;
  StepPrediction plan;      // predict_step of the full plan
  LinkBytes plan_bytes;     // what all workers' plans receive
  double least_bytes = 0;   // that could be exchanged with these owners
  std::int64_t tokens = 0;  // new ones
  double mean_spread = 0, mean_roots = 0;
  double busiest_home_roots = 0;
};

class SimulatedPool {
 public:
  /// Throws kInvalidArgument.
  SimulatedPool(const SimulatedPoolConfig& config, std::uint32_t incarnation);
  SimulatedPool(const SimulatedPool&) = delete;
  SimulatedPool& operator=(const SimulatedPool&) = delete;

  /// Whether the pool could hold the request if it were empty. Throws kInvalidArgument for bad
  /// lengths.
  [[nodiscard]] bool could_hold(const AdmitRequest& request) const;
  /// Takes a request that it could hold, which joins the next step; returns false if there is no
  /// room now.
  [[nodiscard]] bool admit(const AdmitRequest& request, std::int64_t tag);

  /// Begins a step of all sequences, one token each, and returns its time. There must be a sequence
  /// and no step in progress. Leaves move as they would in the orders of its rounds, one for each
  /// layer; owners change before the step.
  const RoundTime& begin_step(double now_s = 0);
  /// Ends the step. Sequences that have all their tokens are gone then, and their pages are free.
  void end_step();

  /// Tags of the sequences whose first step is the one that began last.
  [[nodiscard]] const std::vector<std::int64_t>& joined() const noexcept { return joined_; }
  /// Tags of the sequences that the step that ended last has completed.
  [[nodiscard]] const std::vector<std::int64_t>& finished() const noexcept { return finished_; }

  /// Builds the full plan of the step in progress and predicts it. Use it for samples, since it
  /// costs as much as thousands of steps.
  [[nodiscard]] StepCheck check() const;

  [[nodiscard]] bool in_step() const noexcept { return in_step_; }
  [[nodiscard]] std::size_t sequences() const noexcept { return sequences_; }
  /// Of all prompts that were admitted so far, and of them those that the pool had.
  [[nodiscard]] std::int64_t prompt_tokens() const noexcept { return prompt_tokens_; }
  [[nodiscard]] std::int64_t present_tokens() const noexcept { return present_tokens_; }
  [[nodiscard]] std::int64_t total_pages() const noexcept { return total_pages_; }
  /// Pages that are neither used nor promised.
  [[nodiscard]] std::int64_t free_pages() const noexcept { return free_pages_; }
  /// The time that copies of moving leaves add to the step that began last.
  [[nodiscard]] double copy_us() const noexcept { return copy_us_; }
  [[nodiscard]] double page_copy_bytes() const;
  [[nodiscard]] double balance() const { return clock_.balance(); }
  [[nodiscard]] const Sequencer& sequencer() const noexcept { return sequencer_; }

 private:
  struct Running {
    SequenceId id = 0;
    std::int64_t tag = 0;
    std::int32_t opened = 0;  // tokens of its open step at the sequencer
  };
  static constexpr std::size_t kRing = kMaxStepTokens + 1;

  void open();
  [[nodiscard]] std::int64_t uncounted_from(const Sequence& s) const;
  void move(double now_s);
  [[nodiscard]] std::int64_t rows(const Sequence& s) const;
  [[nodiscard]] std::vector<Running>& due(std::int64_t step) {
    return due_[static_cast<std::size_t>(step) % kRing];
  }

  SimulatedPoolConfig config_;
  Sequencer sequencer_;
  RoundClock clock_;
  MoveSchedule move_schedule_;
  double copy_us_ = 0;
  RoundTime time_;
  std::int64_t step_ = 0;  // the one under way, or the next
  bool in_step_ = false;
  std::size_t sequences_ = 0;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t present_tokens_ = 0;
  std::int64_t total_pages_;
  std::int64_t free_pages_;
  /// Sequences by the step at whose end the sequencer commits them next, modulo the ring's size.
  std::array<std::vector<Running>, kRing> due_;
  struct Opening {
    Running sequence;
    bool uncounted = false;  // by the clock
  };
  std::vector<Opening> opening_;  // those that open a step at the sequencer next
  std::vector<std::int64_t> joining_;
  std::vector<std::int64_t> joined_;
  std::vector<std::int64_t> finished_;
  std::vector<StepItem> items_;
};

}  // namespace tributary
