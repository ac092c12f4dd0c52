// A connection's current deadline.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <utility>

namespace tributary {

/// Used on the loop's thread. The function passed to arm() keeps the timer's owner alive. A loop
/// that was held up over a deadline reads what has come meanwhile before the deadline counts.
class SessionTimer {
 public:
  explicit SessionTimer(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  /// Replaces the previous deadline, even one that has expired but was not delivered yet.
  template <typename Expired>
  void arm(std::chrono::milliseconds delay, Expired expired) {
    timer_.expires_after(delay);
    wait(++armed_, std::move(expired));
  }

  void disarm() {
    ++armed_;
    timer_.cancel();
  }

 private:
  /// A loop that comes so late was held up, and has a hearing of as long.
  static constexpr std::chrono::milliseconds kHeldUp{500};

  template <typename Expired>
  void wait(std::uint64_t armed, Expired expired) {
    timer_.async_wait([this, armed, expired = std::move(expired)](
                          const boost::system::error_code& error) mutable {
      if (error || armed != armed_) return;
      const auto now = std::chrono::steady_clock::now();
      if (now < timer_.expiry() + kHeldUp) return expired();
      timer_.expires_at(now + kHeldUp);
      wait(armed, std::move(expired));
    });
  }

  boost::asio::steady_timer timer_;
  std::uint64_t armed_ = 0;
};

}  // namespace tributary
