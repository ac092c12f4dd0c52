// A pool model that registers over a real WebSocket, from a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/event_loop.h"
#include "comm/http/websocket.h"
#include "deploy/service/protocol/pool_messages.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/toy_pool.h"

namespace tributary {

struct SimulatedPoolConfig : ToyPoolConfig {
  std::string control;  // HOST:PORT
  std::string token;
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
  /// Waits until `holds` is true of its sequences; false after a minute.
  [[nodiscard]] bool wait_for(
      const std::function<bool(const std::map<SequenceId, SequenceInfo>&)>& holds);
  [[nodiscard]] std::vector<SequenceInfo> sequences();
  [[nodiscard]] bool draining();

  /// Questions are not answered from now on.
  void stall();
  /// The pool does nothing at all until `until` returns, like a process that was stopped.
  void hold_up(std::function<void()> until) { loop_.post(std::move(until)); }
  /// Waits until `count` more heartbeats are sent; false after a minute.
  [[nodiscard]] bool wait_for_beats(int count);
  /// As if the lease of a sequence had run out.
  void expire(SequenceId id);
  void send(const std::string& text);

 private:
  void connected(std::shared_ptr<WebSocket> socket, const Status& status);
  void receive(std::string_view text);
  void settle(Registered outcome);
  void beat();

  SimulatedPoolConfig config_;
  EventLoop loop_;
  // Used on the loop's thread only:
  std::shared_ptr<WebSocket> socket_;
  std::unique_ptr<EventLoop::Timer> beats_;
  bool stalled_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Registered> outcome_;
  ToyPool model_;
  int beaten_ = 0;

  std::thread thread_;
};

/// A pool of that control plane.
[[nodiscard]] SimulatedPoolConfig pool_of(const ControlHarness& control,
                                          const std::string& name = "a");

}  // namespace tributary
