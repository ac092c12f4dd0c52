// A pool as the control plane sees one: registers over a real WebSocket, admits sequences into a
// number of pages, answers, beats. It holds no rows and runs no steps; its counters rise by
// themselves.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/event_loop.h"
#include "comm/http/websocket.h"
#include "deploy/service/protocol/pool_messages.h"
#include "tests/deploy/service/control/control_harness.h"

namespace tributary {

struct SimulatedPoolConfig {
  std::string control;  // HOST:PORT
  std::string name = "a";
  std::string run = "run1";
  std::string token;
  int workers = 2;
  int pages_per_worker = 64;
  PoolShape shape;  // sample_shape() where it has no heads
  int protocol = kPoolProtocol;
  std::uint32_t last_incarnation = 0;
  std::vector<SequenceInfo> sequences;  // from an earlier connection
};

class SimulatedPool {
 public:
  /// Connects; see wait_registered().
  explicit SimulatedPool(const SimulatedPoolConfig& config);
  ~SimulatedPool();  // the connection breaks
  SimulatedPool(const SimulatedPool&) = delete;
  SimulatedPool& operator=(const SimulatedPool&) = delete;

  /// The control plane's answer, or what the connection ended with.
  [[nodiscard]] Registered wait_registered();
  /// Waits until `holds` is true of its sequences; false after twenty seconds.
  [[nodiscard]] bool wait_for(
      const std::function<bool(const std::map<SequenceId, SequenceInfo>&)>& holds);
  [[nodiscard]] std::vector<SequenceInfo> sequences();
  [[nodiscard]] bool draining();

  /// While true, questions are not answered; the answers follow when it ends.
  void stall(bool stalled);
  /// The pool does nothing at all until `until` returns, like a process that was stopped.
  void hold_up(std::function<void()> until) { loop_.post(std::move(until)); }
  /// No heartbeats.
  void silence(bool silent);
  /// Waits until `count` more heartbeats are sent; false after twenty seconds.
  [[nodiscard]] bool wait_for_beats(int count);
  /// As if the lease of a sequence had run out.
  void expire(SequenceId id);
  void send(const std::string& text);

 private:
  void connected(std::shared_ptr<WebSocket> socket, const Status& status);
  void receive(std::string_view text);
  void settle(Registered outcome);
  void beat();
  void count_work();
  [[nodiscard]] PoolReply answer(const Admit& admit);
  [[nodiscard]] int free_pages() const;
  void reply(const PoolReply& reply);

  SimulatedPoolConfig config_;
  EventLoop loop_;
  // Used on the loop's thread only:
  std::shared_ptr<WebSocket> socket_;
  std::unique_ptr<EventLoop::Timer> beats_;
  bool stalled_ = false;
  bool silent_ = false;
  std::vector<PoolReply> held_back_;
  PoolMetrics metrics_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Registered> outcome_;
  std::map<SequenceId, SequenceInfo> sequences_;
  bool draining_ = false;
  std::set<int> drained_workers_;
  int beaten_ = 0;

  std::thread thread_;
};

/// A pool of that control plane.
[[nodiscard]] SimulatedPoolConfig pool_of(const ControlHarness& control,
                                          const std::string& name = "a");

}  // namespace tributary
