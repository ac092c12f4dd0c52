// Decides which of a name's addresses is tried when, after RFC 8305 ("Happy Eyeballs").
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/deadline.h"

namespace tributary {

/// Addresses are numbers, tried in their order, at most two at a time. The second starts when the
/// first has had a while; with both silent, the older one gives way to the next address. The last
/// ones go on for as long as the caller waits. Reads no clock and has no socket.
class AddressRace {
 public:
  /// As RFC 8305 recommends: far above a round trip in a network that works.
  static constexpr std::chrono::milliseconds kHeadStart{250};
  /// One lost SYN is sent again after 1 s.
  static constexpr std::chrono::milliseconds kPatience{2'000};

  explicit AddressRace(std::size_t addresses) : addresses_(addresses) {}

  struct Move {
    std::optional<std::size_t> abandon;  // an attempt that ends now
    std::optional<std::size_t> start;    // the one that begins
  };
  /// What is to be done at `now`.
  [[nodiscard]] Move next(Time now);
  /// An attempt has failed: next() has something to do at once, unless lost().
  void failed(std::size_t address);
  /// When next() has something to do; no value: not before an attempt fails.
  [[nodiscard]] std::optional<Time> wake() const;
  /// Every address has failed.
  [[nodiscard]] bool lost() const { return running_.empty() && next_ == addresses_; }

 private:
  struct Attempt {
    std::size_t address;
    Time since;
  };

  std::size_t addresses_;
  std::size_t next_ = 0;
  std::deque<Attempt> running_;  // the oldest first
};

/// Addresses of two families by turns, each in its order, the first one's family first: a network
/// without one of them costs one head start, however many addresses of it there are.
template <typename Address, typename IsOfFirst>
[[nodiscard]] std::vector<Address> take_turns(std::vector<Address> addresses,
                                              const IsOfFirst& is_of_first) {
  const auto others = std::stable_partition(addresses.begin(), addresses.end(), is_of_first);
  std::vector<Address> turns;
  for (auto one = addresses.begin(), other = others; one != others || other != addresses.end();) {
    if (one != others) turns.push_back(std::move(*one++));
    if (other != addresses.end()) turns.push_back(std::move(*other++));
  }
  return turns;
}

}  // namespace tributary
