#include "core/interface/simulated_clock.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"

namespace tributary {

/// A thread, as the others see it.
struct SimulatedClock::Turn {
  int number = 0;
  int process = 0;
  std::condition_variable go;  // with State::mutex; nobody else waits for it
  bool running = false;

  // While it is not running: what for.
  Condition* changed = nullptr;  // null: for nothing, it may go on
  std::uint64_t notifications = 0;
  Time until = Time::max();
  Time held_until{};  // since it may go on

  [[nodiscard]] bool may_go_on(Time now) const {
    return changed == nullptr || changed->notifications() != notifications || now >= until;
  }
};

struct SimulatedClock::State {
  /// Far more than a simulated tier needs for all that happens at one time.
  static constexpr std::uint64_t kMostTurnsAtOnce = 100'000;
  static constexpr std::uint64_t kMostReads = 10'000'000;  // of the time, in a turn

  std::mutex mutex;
  HoldUp hold_up;
  Time now;
  std::vector<std::shared_ptr<Turn>> turns;  // of threads that live, in the order of their start
  int started = 0;
  std::uint64_t draws;
  std::uint64_t count = 0;
  std::uint64_t digest = 0;
  std::uint64_t at_once = 0;  // turns since the time has moved
  std::uint64_t reads = 0;    // since the last turn began

  State(std::uint64_t seed, Time begin, HoldUp held)
      : hold_up(std::move(held)), now(begin), draws(mix64(seed + kGoldenGamma)) {}

  std::shared_ptr<Turn> add(int process) {
    auto turn = std::make_shared<Turn>();
    turn->number = started++;
    turn->process = process;
    let_go_on(*turn);
    turns.push_back(turn);
    return turn;
  }

  void let_go_on(Turn& turn) const {
    turn.changed = nullptr;
    turn.held_until = now + (hold_up ? hold_up(turn.process) : Duration::zero());
  }

  /// The thread that goes on next; moves the time to when there is one.
  std::shared_ptr<Turn> choose() {
    std::vector<std::shared_ptr<Turn>> ready;
    while (true) {
      Time next = Time::max();
      for (const auto& turn : turns) {
        if (turn->changed != nullptr && turn->may_go_on(now)) let_go_on(*turn);
        const Time when = turn->changed != nullptr ? turn->until : turn->held_until;
        if (turn->changed == nullptr && when <= now) ready.push_back(turn);
        next = std::min(next, when);
      }
      if (!ready.empty()) break;
      if (next == Time::max()) give_up("all threads wait for ever");
      now = next;
      at_once = 0;
    }
    if (++at_once > kMostTurnsAtOnce) give_up("threads run on while no time passes");
    draws += kGoldenGamma;
    auto chosen = ready[mix64(draws) % ready.size()];
    ++count;
    reads = 0;
    digest = mix64(digest ^ (static_cast<std::uint64_t>(chosen->number) + kGoldenGamma));
    digest = mix64(digest ^ static_cast<std::uint64_t>(now.time_since_epoch().count()));
    return chosen;
  }

  void hand_over() {
    const auto next = choose();
    next->running = true;
    next->go.notify_all();
  }

  /// `self` waits for its turn; the others have theirs meanwhile.
  void wait_turn(std::unique_lock<std::mutex>& lock, Turn& self) {
    self.running = false;
    hand_over();
    self.go.wait(lock, [&] { return self.running; });
  }

  void end(const std::shared_ptr<Turn>& turn) { std::erase(turns, turn); }

  [[noreturn]] void give_up(std::string_view why) const {
    fmt::print(stderr, "simulation: {} after {} turns\n", why, count);
    for (const auto& turn : turns) {
      fmt::print(stderr, "  thread {} of process {}: {}\n", turn->number, turn->process,
                 turn->changed == nullptr     ? "may go on"
                 : turn->until == Time::max() ? "waits"
                                              : "waits until a time");
    }
    std::terminate();
  }
};

namespace {
/// The calling thread's, of type Turn, which is private.
thread_local void* this_turn = nullptr;
}  // namespace

SimulatedClock::SimulatedClock(std::uint64_t seed, Time begin, HoldUp hold_up)
    : state_(std::make_shared<State>(seed, begin, std::move(hold_up))) {}

SimulatedClock::~SimulatedClock() = default;

void SimulatedClock::run(const std::function<void()>& body) {
  std::shared_ptr<Turn> turn;
  {
    std::unique_lock lock(state_->mutex);
    turn = state_->add(0);
    this_turn = turn.get();
    state_->wait_turn(lock, *turn);
  }
  const Status status = status_of(body);
  const std::lock_guard lock(state_->mutex);
  this_turn = nullptr;
  state_->end(turn);
  status.throw_if_error();
  if (!state_->turns.empty()) state_->give_up("the first thread ended before the others");
}

void SimulatedClock::as_process(int process, const std::function<void()>& body) {
  auto& self = *static_cast<Turn*>(this_turn);
  const int before = std::exchange(self.process, process);
  const Status status = status_of(body);
  self.process = before;
  status.throw_if_error();
}

void SimulatedClock::kill(int process) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->turns, [&](const auto& turn) { return turn->process == process; });
}

Time SimulatedClock::read() const {
  if (++state_->reads > State::kMostReads) state_->give_up("a thread runs on without a wait");
  return state_->now;
}

void SimulatedClock::wait_until(Condition& changed, std::unique_lock<std::mutex>& lock,
                                Time until) {
  auto& self = *static_cast<Turn*>(this_turn);
  {
    std::unique_lock turns(state_->mutex);
    self.changed = &changed;
    self.notifications = changed.notifications();
    self.until = until;
    lock.unlock();
    state_->wait_turn(turns, self);
  }
  lock.lock();
}

void SimulatedClock::wait(Condition& changed, std::unique_lock<std::mutex>& lock) {
  wait_until(changed, lock, Time::max());
}

std::thread SimulatedClock::start(std::function<void()> body) {
  const std::lock_guard lock(state_->mutex);
  auto turn = state_->add(static_cast<const Turn*>(this_turn)->process);
  return std::thread([state = state_, turn = std::move(turn), body = std::move(body)]() mutable {
    this_turn = turn.get();
    {
      std::unique_lock own(state->mutex);
      turn->go.wait(own, [&] { return turn->running; });
    }
    body();
    body = nullptr;  // what it holds goes while it is this thread's turn
    const std::lock_guard own(state->mutex);
    state->end(turn);
    state->hand_over();
  });
}

std::uint64_t SimulatedClock::turns() const {
  return state_->count;
}

std::uint64_t SimulatedClock::digest() const {
  return state_->digest;
}

}  // namespace tributary
