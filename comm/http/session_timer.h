// A connection's current deadline.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tributary {

/// Used on the loop's thread. The function passed to arm() keeps the timer's owner alive.
class SessionTimer {
 public:
  explicit SessionTimer(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  /// Replaces the previous deadline, even one that has expired but was not delivered yet.
  template <typename Expired>
  void arm(std::chrono::milliseconds delay, Expired expired) {
    const std::uint64_t armed = ++armed_;
    timer_.expires_after(delay);
    timer_.async_wait([this, armed, expired = std::move(expired)](
                          const boost::system::error_code& error) mutable {
      if (!error && armed == armed_) expired();
    });
  }

  void disarm() {
    ++armed_;
    timer_.cancel();
  }

 private:
  boost::asio::steady_timer timer_;
  std::uint64_t armed_ = 0;
};

}  // namespace tributary
