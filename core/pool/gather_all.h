// Plain values and statuses from every rank to every rank: how the workers of a pool agree.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/error.h"
#include "core/interface/communicator.h"

namespace tributary {

/// A text inside such a value; longer ones are cut.
inline constexpr std::size_t kTextBytes = 240;
using Text = std::array<char, kTextBytes>;

inline void set_text(Text& text, std::string_view value) {
  text.fill('\0');
  std::copy_n(value.begin(), std::min(value.size(), kTextBytes - 1), text.begin());
}

/// Every rank's `mine`, in rank order; as many values on every rank. Those of ranks that do not
/// take part are T{}.
template <typename T>
Status gather_all(Communicator& communicator, std::span<const T> mine, std::vector<T>& all,
                  Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::span<const int> members = communicator.members();
  std::vector<std::size_t> counts(ranks, 0);
  for (const int member : members) counts[static_cast<std::size_t>(member)] = mine.size_bytes();
  all.assign(ranks * mine.size(), T{});
  const auto arrived = std::span(all).first(members.size() * mine.size());
  Status status = communicator.all_gather(std::as_bytes(mine), std::as_writable_bytes(arrived),
                                          counts, deadline);
  // Blocks arrive without gaps. Each moves up to the slot of its rank, the last one first, so that
  // none is overwritten before it has moved.
  for (std::size_t i = members.size(); i-- > 0;) {
    const auto slot = static_cast<std::size_t>(members[i]);
    if (slot == i) break;  // so are all before it
    const auto from = arrived.subspan(i * mine.size(), mine.size());
    std::ranges::copy(from, all.begin() + static_cast<std::ptrdiff_t>(slot * mine.size()));
    std::ranges::fill(from, T{});
  }
  return status;
}

/// The same with one value of each rank.
template <typename T>
Status gather_all(Communicator& communicator, const T& mine, std::vector<T>& all,
                  Deadline deadline) {
  return gather_all(communicator, std::span<const T>(&mine, 1), all, deadline);
}

/// A value of one rank, and how that rank is doing.
template <typename T>
struct RankReport {
  std::int32_t code = 0;  // ErrorCode
  Text message{};
  T value{};

  [[nodiscard]] bool ok() const noexcept { return code == 0; }
  [[nodiscard]] Status status() const {
    return ok() ? Status() : Status(static_cast<ErrorCode>(code), message.data());
  }
};

/// Every rank's status and value, in rank order.
template <typename T>
Status gather_reports(Communicator& communicator, const Status& own, const T& value,
                      std::vector<RankReport<T>>& all, Deadline deadline) {
  RankReport<T> mine{.code = static_cast<std::int32_t>(own.code()), .message = {}, .value = value};
  set_text(mine.message, own.message());
  return gather_all(communicator, mine, all, deadline);
}

/// Whether a message begins with "worker RANK: ", as one of gather_values() does.
[[nodiscard]] inline bool names_worker(std::string_view message) {
  constexpr std::string_view kStart = "worker ";
  if (!message.starts_with(kStart)) return false;
  message.remove_prefix(kStart.size());
  const std::size_t digits = std::min(message.find_first_not_of("0123456789"), message.size());
  return digits > 0 && message.substr(digits).starts_with(": ");
}

/// Every rank's value, in rank order. Where `own` is a failure on some rank, every rank throws the
/// first one: its code, and "worker RANK: MESSAGE", where the message does not name a worker
/// itself. A failure of the collective is thrown as well.
template <typename T>
std::vector<T> gather_values(Communicator& communicator, const Status& own, const T& value,
                             Deadline deadline) {
  std::vector<RankReport<T>> all;
  gather_reports(communicator, own, value, all, deadline).throw_if_error();
  std::vector<T> values;
  for (std::size_t r = 0; r < all.size(); ++r) {
    // A rank has its own message in full.
    const bool is_own = static_cast<int>(r) == communicator.rank();
    const Status status = is_own ? own : all[r].status();
    if (names_worker(status.message())) status.throw_if_error();
    if (!status.ok()) fail(status.code(), "worker {}: {}", r, status.message());
    values.push_back(all[r].value);
  }
  return values;
}

}  // namespace tributary
