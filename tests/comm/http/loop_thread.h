// An EventLoop on a thread of its own, for tests that block on the other side.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "comm/http/event_loop.h"
#include "comm/http/http_server.h"

namespace tributary {

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  EventLoop& loop() { return loop_; }

  /// Runs `work` on the loop's thread and waits for its result.
  template <typename Work>
  auto call(Work work) {
    std::packaged_task<decltype(work())()> task(std::move(work));
    auto result = task.get_future();
    loop_.post([&task] { task(); });
    return result.get();
  }

 private:
  EventLoop loop_;
  std::thread thread_;
};

/// A server on a loop thread, destroyed on it.
class TestServer {
 public:
  TestServer(const HttpServerConfig& config, HttpHandlers handlers) {
    loop_.call(
        [&] { server_ = std::make_unique<HttpServer>(loop_.loop(), config, std::move(handlers)); });
  }
  ~TestServer() { stop(); }
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  void stop() {
    loop_.call([this] { server_ = nullptr; });
  }
  LoopThread& thread() { return loop_; }
  HttpServer& server() { return *server_; }
  [[nodiscard]] const std::string& address() const { return server_->address(); }

 private:
  LoopThread loop_;
  std::unique_ptr<HttpServer> server_;
};

// Longer than anything that works takes on a busy machine.
inline constexpr std::chrono::seconds kPatience{20};

/// Its value, within the patience. Throws std::runtime_error otherwise.
template <typename T>
T await(std::future<T>& future) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    throw std::runtime_error("what the test waits for did not happen");
  }
  return future.get();
}

/// Whether `holds` becomes true within the patience: for state whose changes are not announced.
inline bool eventually(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace tributary
