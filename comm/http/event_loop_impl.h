// The implementation of EventLoop, used by comm/http only.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>

#include "comm/http/event_loop.h"
#include "comm/http/io_context.h"

namespace tributary {

/// Posts work to a loop from any thread. It may outlive the loop and drops later work then.
class LoopGate {
 public:
  explicit LoopGate(boost::asio::io_context& io) : io_(&io) {}
  void post(std::function<void()> work);
  void close();

 private:
  std::mutex mutex_;
  boost::asio::io_context* io_;  // null after close()
};

struct EventLoop::Impl {
  ~Impl() { gate->close(); }

  IoContext context;
  boost::asio::io_context& io = context.get();
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::shared_ptr<LoopGate> gate = std::make_shared<LoopGate>(io);
};

}  // namespace tributary
