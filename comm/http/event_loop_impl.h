// What an EventLoop is made of, for comm/http alone.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>

#include "comm/http/event_loop.h"

namespace tributary {

/// The way onto a loop from any thread, which may outlive the loop: a late answer finds it closed.
class LoopGate {
 public:
  explicit LoopGate(boost::asio::io_context& io) : io_(&io) {}
  /// Drops the work when the loop is gone.
  void post(std::function<void()> work);
  void close();

 private:
  std::mutex mutex_;
  boost::asio::io_context* io_;  // null once closed
};

struct EventLoop::Impl {
  ~Impl() { gate->close(); }

  boost::asio::io_context io{1};  // one thread runs it
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::shared_ptr<LoopGate> gate = std::make_shared<LoopGate>(io);
};

}  // namespace tributary
