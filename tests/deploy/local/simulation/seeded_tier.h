// A whole tier of one pool on a simulated clock, from one seed: run_worker() on every rank, over
// a slow network that carries their collectives too, LocalControl, and clients; and what goes
// wrong.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "core/interface/simulated_clock.h"
#include "core/interface/thread.h"
#include "deploy/local/local_control.h"
#include "deploy/service/worker/serve_pool.h"
#include "tests/deploy/local/simulation/order_watch.h"
#include "tests/deploy/local/simulation/simulated_client.h"
#include "tests/deploy/local/simulation/simulated_network.h"
#include "tests/dice.h"

namespace tributary::test {

class SeededTier {
 public:
  explicit SeededTier(std::uint64_t seed);
  ~SeededTier();
  SeededTier(const SeededTier&) = delete;
  SeededTier& operator=(const SeededTier&) = delete;

  /// Runs to the end of the pool, which is in order unless worker 0 was killed. Call it once.
  void run();

  [[nodiscard]] int workers() const noexcept { return workers_; }
  [[nodiscard]] bool leader_killed() const noexcept { return broken_; }
  /// Other workers that were killed, or cut off from each other.
  [[nodiscard]] int lost_workers() const noexcept { return lost_workers_; }
  /// Processes that came in their places, and got the table.
  [[nodiscard]] int newcomers() const noexcept { return newcomers_; }
  /// That clients pushed again since a worker had them.
  [[nodiscard]] std::int64_t rows_again() const noexcept { return rows_again_; }
  /// Messages that have arrived, and calls of clients.
  [[nodiscard]] int events() const noexcept { return events_; }
  /// Messages and threads that were held up for long, processes that stood still, connections that
  /// broke, processes that were killed.
  [[nodiscard]] int faults() const noexcept { return faults_; }
  /// Of prompts, that other sequences had brought.
  [[nodiscard]] std::int64_t present_tokens() const noexcept { return present_tokens_; }
  /// Sequences that began with rows of another one.
  [[nodiscard]] int forks() const noexcept { return forks_; }
  /// How often a heartbeat said that a worker which was being emptied held nothing, while sequences
  /// ran.
  [[nodiscard]] int emptied() const noexcept { return emptied_; }
  [[nodiscard]] std::uint64_t turns() const { return clock_.turns(); }
  [[nodiscard]] std::uint64_t orders() const { return orders_.orders(); }
  [[nodiscard]] double simulated_seconds() const;
  /// Of all turns, messages and answers.
  [[nodiscard]] std::uint64_t digest() const;

 private:
  /// A process with one main thread. A killed one is left as it is.
  struct Process {
    std::thread thread;
    bool killed = false;
    bool ended = false;
    Status status;
    std::unique_ptr<ControlChannel> channel;  // of rank 0
  };
  [[nodiscard]] int rank_process(int rank) const {
    return process_of_[static_cast<std::size_t>(rank)];
  }
  static int client_process(int client) { return 10'000 + client; }

  [[nodiscard]] WorkerOptions draw_options();
  [[nodiscard]] Duration draw_hold_up(int process);
  [[nodiscard]] Duration draw_delay();
  void note(std::uint64_t value);
  void note_message(int process, std::uint16_t type, std::span<const std::byte> bytes);
  void pass(Duration duration);
  void start(Process& process, int number, std::function<void()> body);
  [[nodiscard]] bool wait_end(const Process& process, Duration limit);

  void take_order(int process, std::span<const std::byte> payload);
  void work(int rank);
  [[nodiscard]] MeshConfig mesh_of(int rank) const;
  [[nodiscard]] std::unique_ptr<ControlChannel> connect(RegisterPool pool,
                                                        ControlLinkHandlers handlers);
  void be_client(int client);
  void weather();
  void stand_still();
  void cut();
  void drain();
  void kill_client();
  void kill_leader();
  void kill_worker();
  void cut_off_worker();
  void replace_worker();
  void replace_worker(int rank);
  void check_cut_off(int rank);
  void wait_for_newcomers();
  [[nodiscard]] bool watched();
  void check_heartbeat();
  void check_idle();
  void end_pool();
  void end_broken_pool(Time since);

  Dice dice_;
  SimulatedClock clock_;
  SimulatedNetwork network_;
  int workers_;
  bool leader_dies_;
  int victims_;  // how many other workers die
  WorkerOptions options_;
  LocalControl control_;
  OrderWatch orders_;
  std::vector<int> process_of_;  // [rank]; another number with each process
  std::deque<Process> ranks_;
  std::deque<Process> dead_;  // that were ranks
  std::vector<Process> clients_;
  std::map<int, Time> still_until_;  // by process
  std::mutex mutex_;
  Condition changed_;  // for the ends of processes, and `serving_`
  bool serving_ = false;
  bool broken_ = false;
  bool calm_ = true;  // no faults
  int events_ = 0;
  int faults_ = 0;
  std::int64_t present_tokens_ = 0;
  int forks_ = 0;
  int emptied_ = 0;
  int lost_workers_ = 0;
  int cut_off_ = 0;         // of these, those that live
  std::set<int> expected_;  // lost ranks for which another process was started
  int newcomers_ = 0;
  std::int64_t rows_again_ = 0;
  std::function<bool(ToPool)> request_;  // to the leader
  std::optional<int> draining_;          // the worker that is being emptied
  std::uint64_t digest_ = 0;
};

}  // namespace tributary::test
