// A control plane's decisions and its pools in simulated time, on one thread: processes that may be
// stopped or killed, a network that may be cut, no sockets and no HTTP.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/manual_clock.h"
#include "deploy/service/control/admissions.h"
#include "deploy/service/control/held_sequences.h"
#include "deploy/service/control/pool_links.h"
#include "deploy/service/control/pool_registry.h"
#include "tests/deploy/service/control/toy_pool.h"

namespace tributary {

/// A process that may be stopped: what it is to do meanwhile waits until it goes on.
class SimulatedProcess {
 public:
  explicit SimulatedProcess(ManualClock& clock) : clock_(clock) {}

  void run(std::function<void()> work);
  /// Before all that waits: a timer may be served before or after the sockets.
  void run_first(std::function<void()> work);
  /// No effect on a process that is stopped.
  void stop(Duration duration);
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// In all, as planned.
  [[nodiscard]] Duration stopped_for() const { return stopped_for_; }

 private:
  void go_on();

  ManualClock& clock_;
  bool stopped_ = false;
  Duration stopped_for_{0};
  std::deque<std::function<void()>> waiting_;
};

class SimulatedTier;

/// A pool's process and its link: registers, beats twice a second, gives a control plane up that is
/// silent for five seconds, and connects again, as ControlLink does. It ends sequences that no
/// client knows when their lease ends.
class TierPool {
 public:
  TierPool(SimulatedTier& tier, ToyPoolConfig config);

  ToyPool model;
  SimulatedProcess process;

  /// Nothing passes in either direction; it arrives when the cut ends, as TCP repeats it.
  void cut(Duration duration);
  /// The process ends, and its connection with it.
  void kill();
  /// Tells the control plane, where it is registered.
  void tell(const FromPool& word);
  /// Answers take so much longer from now on.
  void answer_after(Duration delay) { answer_delay_ = delay; }
  [[nodiscard]] bool registered() const { return registered_; }
  [[nodiscard]] bool dead() const { return dead_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] const std::vector<Registered>& answers() const { return answers_; }

 private:
  struct Connection;
  class Socket;

  void connect();
  void lost();
  void drop(std::string reason);
  void tick();
  void receive(std::string_view text);
  void send(const FromPool& word);
  /// Over the network, either way.
  void pass(std::function<void()> arrival);

  SimulatedTier& tier_;
  std::string name_;
  std::shared_ptr<Connection> connection_;
  bool registered_ = false;
  bool dead_ = false;
  bool cut_ = false;
  std::deque<std::function<void()>> cut_off_;
  Duration answer_delay_{0};
  Duration wait_;
  Time heard_;  // the control plane
  std::map<SequenceId, Time> unknown_since_;
  std::vector<Registered> answers_;
};

class SimulatedTier {
 public:
  struct Config {
    PoolLinks::Config links;
    std::chrono::milliseconds admission_timeout{10'000};
    std::uint32_t incarnation = 1000;
  };
  explicit SimulatedTier(const Config& config);
  SimulatedTier() : SimulatedTier(Config{}) {}

  /// All that a control plane knows; gone where it restarts.
  struct Control {
    Control(SimulatedTier& tier, const Config& config);
    PoolRegistry registry;
    PoolLinks links;
    Admissions::CallPool call_pool;
    Admissions admissions;
    HeldSequences held;
  };
  struct Known {
    std::string pool;
    bool keyed = false;  // others may hold it by its key
  };
  struct Admission {
    /// From when the control plane reads it, without the time for which it is stopped after that.
    Time deadline{Time::max().time_since_epoch() / 2};
    Duration stopped_before{0};
    int answers = 0;
    Time answered;
    AdmissionResult result;
  };

  ManualClock clock{Time(std::chrono::hours(1))};
  SimulatedProcess process{clock};  // of the control plane
  std::vector<std::string> log;
  std::vector<std::unique_ptr<TierPool>> pools;
  std::unique_ptr<Control> control;  // its sockets end before the pools that they lead to
  std::vector<std::shared_ptr<Admission>> admissions;

  TierPool& add_pool(const ToyPoolConfig& config);
  /// Runs until `duration` has passed.
  void pass(Duration duration) { clock.advance(duration); }
  void stop_control(Duration duration) { process.stop(duration); }
  /// Another control plane in its place, which knows nothing.
  void restart_control(std::uint32_t incarnation);
  /// Restarts it when message `number` has arrived at its end, at whichever; before that is read,
  /// or after.
  void restart_control_at(int number, bool before) { restart_at_ = {number, before}; }
  /// That have arrived so far.
  [[nodiscard]] int messages() const { return messages_; }
  void arrive(const std::function<void()>& message);
  /// How often it was restarted.
  [[nodiscard]] int restarts() const { return restarts_; }

  /// Asks; the answer comes while time passes.
  std::shared_ptr<Admission> admit(const AdmitRequest& request);
  /// Asks, and passes time until the answer.
  AdmissionResult admitted(const AdmitRequest& request);
  void query(SequenceId id, std::function<void(const Status&)> done);
  Status queried(SequenceId id);
  void free(SequenceId id, const std::string& pool);
  /// A client has it, and renews its lease.
  [[nodiscard]] bool is_known(SequenceId id) const { return known_.contains(id); }
  [[nodiscard]] const std::map<SequenceId, Known>& known() const { return known_; }
  [[nodiscard]] PoolState state(const std::string& pool) const;
  /// A client gives it up.
  void forget(SequenceId id) { known_.erase(id); }

 private:
  void tick();

  Config config_;
  std::map<SequenceId, Known> known_;
  bool timer_first_ = false;
  int messages_ = 0;
  int restarts_ = 0;
  std::optional<std::pair<int, bool>> restart_at_;
};

}  // namespace tributary
