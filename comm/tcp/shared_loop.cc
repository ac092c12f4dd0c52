#include "comm/tcp/shared_loop.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>

namespace tributary::tcp {
namespace {

/// As many handlers are called by a guest that leaves; where more are ready, the own thread takes
/// over at once.
constexpr int kLastHandlers = 4;

}  // namespace

void SharedLoop::run() {
  std::unique_lock lock(mutex_);
  while (!io_.stopped()) {
    rests_ = true;
    changed_.wait(lock, [this] { return !has_guest(); });
    rests_ = false;
    const auto called = [this] { return needed_ || ending_ || has_guest(); };
    // Guests may have come and gone meanwhile.
    while (!called() && std::chrono::steady_clock::now() < left_ + kAbsence) {
      changed_.wait_until(lock, left_ + kAbsence, called);
    }
    if (has_guest()) continue;
    needed_ = false;
    alone_ = true;
    lock.unlock();
    work_alone();
    lock.lock();
    alone_ = false;
    changed_.notify_all();
  }
}

/// Until somebody is to be let in.
void SharedLoop::work_alone() {
  while (!io_.stopped()) {
    if (!busy_poll_) {
      io_.run_one();
    } else if (io_.poll_one() == 0) {
      // With fewer cores than threads a spinning thread would keep the others from working.
      std::this_thread::yield();
    }
    const std::lock_guard lock(mutex_);
    if (has_guest()) return;
  }
}

void SharedLoop::end() {
  const std::lock_guard lock(mutex_);
  ending_ = true;
  changed_.notify_all();
}

bool SharedLoop::work_until(Time until, const std::function<bool()>& done) {
  if (!let_in(until)) return false;
  while (!done()) {
    const Time now = std::chrono::steady_clock::now();
    if (now >= until || io_.stopped()) {
      leave(false);
      return true;
    }
    work_as_guest(until - now);
  }
  // What is ready besides is mostly an event of bytes that were read already.
  int ready = 0;
  while (ready < kLastHandlers && io_.poll_one() > 0) ++ready;
  leave(ready == kLastHandlers);
  return true;
}

/// An exception of a handler ends the process, as on the own thread: the guest could not mend it.
void SharedLoop::work_as_guest(Duration most) noexcept {
  // epoll waits for whole milliseconds.
  const auto whole = std::chrono::floor<std::chrono::milliseconds>(most);
  if (!busy_poll_ && whole.count() > 0) {
    io_.run_one_for(whole);
  } else if (io_.poll_one() == 0) {
    std::this_thread::yield();
  }
}

bool SharedLoop::let_in(Time until) {
  std::unique_lock lock(mutex_);
  if (ending_) return false;
  if (has_guest()) {
    awaited_ = std::max(awaited_, until);
    return false;
  }
  guest_ = std::this_thread::get_id();
  if (alone_) {
    boost::asio::post(io_, [] {});
    changed_.wait(lock, [this] { return !alone_; });
  }
  return true;
}

void SharedLoop::leave(bool more) {
  const std::lock_guard lock(mutex_);
  guest_ = {};
  left_ = std::chrono::steady_clock::now();
  needed_ = needed_ || more || left_ < awaited_;
  if (rests_ || needed_) changed_.notify_all();
}

void SharedLoop::wake() {
  const std::lock_guard lock(mutex_);
  if (has_guest() && guest_ != std::this_thread::get_id()) boost::asio::post(io_, [] {});
}

}  // namespace tributary::tcp
