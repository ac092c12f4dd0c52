// A clock for simulations with real threads: one runs at a time, a seed draws which, and the time
// moves when all of them wait. A seed repeats its run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/interface/clock.h"

namespace tributary {

/// Threads belong to processes, which are numbers: a thread to that of the thread that starts it,
/// unless as_process() says otherwise. A thread runs until it waits by this clock, or ends; it must
/// wait by nothing else, and hold no lock that another thread takes meanwhile. The process ends
/// with a list of who waits where all threads wait for ever, or where they run on while no time
/// passes: such a run has lost a wake, or polls.
class SimulatedClock final : public Clock {
 public:
  /// How long a thread of `process` is held up whenever it might go on: it is told to start, was
  /// notified, or its time has come. Mostly zero, or as long as processors take. It does not wait.
  using HoldUp = std::function<Duration(int process)>;

  SimulatedClock(std::uint64_t seed, Time begin, HoldUp hold_up);
  ~SimulatedClock() override;

  /// Runs `body` as the first thread, of process 0. Every other thread has ended, or was killed,
  /// when `body` returns; threads that were killed keep their memory until the program ends. Throws
  /// what `body` throws.
  void run(const std::function<void()>& body);
  /// Threads that start in `body` belong to `process`.
  void as_process(int process, const std::function<void()>& body);
  /// The threads of `process`, another one than the caller's, never go on.
  void kill(int process);

  [[nodiscard]] Time now() const override { return read(); }
  void wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until) override;
  void wait(Condition& changed, std::unique_lock<std::mutex>& lock) override;
  using Clock::wait;
  using Clock::wait_until;
  /// A thread of a process that may be killed is detached by whoever would join it.
  [[nodiscard]] std::thread start(std::function<void()> body) override;
  [[nodiscard]] Duration look() const override { return Duration::zero(); }

  /// How often a thread went on.
  [[nodiscard]] std::uint64_t turns() const;
  /// A digest of who went on, and when: equal for equal runs.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  [[nodiscard]] Time read() const;
  struct Turn;
  struct State;
  std::shared_ptr<State> state_;  // also of threads that were killed
};

}  // namespace tributary
