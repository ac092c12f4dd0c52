// Plain values from every rank to every rank: how the workers of a pool come to an agreement.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/interface/communicator.h"

namespace tributary {

/// A text inside such a value; longer ones are cut.
inline constexpr std::size_t kTextBytes = 240;
using Text = std::array<char, kTextBytes>;

inline void set_text(Text& text, std::string_view value) {
  text.fill('\0');
  std::copy_n(value.begin(), std::min(value.size(), kTextBytes - 1), text.begin());
}

/// Every rank's `mine`, in rank order.
template <typename T>
Status gather_all(Communicator& communicator, const T& mine, std::vector<T>& all,
                  Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto ranks = static_cast<std::size_t>(communicator.size());
  all.resize(ranks);
  const std::vector<std::size_t> counts(ranks, sizeof(T));
  return communicator.all_gather(std::as_bytes(std::span(&mine, 1)),
                                 std::as_writable_bytes(std::span(all)), counts, deadline);
}

}  // namespace tributary
