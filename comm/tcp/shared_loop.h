// Who runs a transport's io_context: its own thread or, for a while, one that waits for a message.
#pragma once

#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "core/base/deadline.h"

namespace tributary::tcp {

/// One thread at a time runs it: the own thread, or a guest. A guest that leaves will probably be
/// back soon: the own thread leaves the place to it for kAbsence, so that one that comes again and
/// again wakes nobody. It takes over at once where much is ready when the guest leaves, or another
/// one waits that was not let in.
class SharedLoop {
 public:
  SharedLoop(boost::asio::io_context& io, bool busy_poll) : io_(io), busy_poll_(busy_poll) {}

  /// For the own thread: returns when the io_context has stopped, after end().
  void run();
  /// No guest is let in any more.
  void end();

  /// See Transport. A guest; false if there is another one.
  [[nodiscard]] bool work_until(Time until, const std::function<bool()>& done);
  void wake();

  static constexpr std::chrono::milliseconds kAbsence{2};

 private:
  [[nodiscard]] bool let_in(Time until);
  void leave(bool more);
  [[nodiscard]] bool has_guest() const { return guest_ != std::thread::id(); }
  void work_alone();
  void work_as_guest(Duration most) noexcept;

  boost::asio::io_context& io_;
  const bool busy_poll_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::thread::id guest_;  // who runs it, or is about to
  bool alone_ = false;     // the own thread runs it
  bool rests_ = false;     // the own thread waits until there is no guest
  bool needed_ = false;    // the own thread is to take over at once
  bool ending_ = false;
  Time awaited_{};  // until when somebody waits who was not let in
  Time left_{};     // the last guest
};

}  // namespace tributary::tcp
