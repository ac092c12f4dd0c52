#include "deploy/service/protocol/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

namespace tributary::wire {
namespace {

constexpr std::size_t kDigits = 3;
constexpr std::uint32_t kDigitBits = 11;  // three of them are more than 32; a table takes 8 KiB
constexpr std::size_t kDigitValues = 1U << kDigitBits;

std::size_t digit(std::int32_t value, std::size_t number) {
  // As without a sign: what is negative comes last.
  return static_cast<std::uint32_t>(value) >> (number * kDigitBits) & (kDigitValues - 1);
}

}  // namespace

void order_selection(std::span<std::int32_t> list, std::vector<std::int32_t>& scratch) {
  const auto unsigned_of = [](std::int32_t value) { return static_cast<std::uint32_t>(value); };
  if (std::ranges::is_sorted(list, {}, unsigned_of)) return;
  scratch.resize(list.size());
  std::array<std::array<std::uint32_t, kDigitValues>, kDigits> starts{};
  for (const std::int32_t value : list) {
    for (std::size_t d = 0; d < kDigits; ++d) ++starts[d][digit(value, d)];
  }
  std::span<std::int32_t> from = list;
  std::span<std::int32_t> to = scratch;
  for (std::size_t d = 0; d < kDigits; ++d) {
    if (starts[d][digit(list.front(), d)] == list.size()) continue;  // all have the same
    std::uint32_t sum = 0;
    for (std::uint32_t& start : starts[d]) sum += std::exchange(start, sum);
    for (const std::int32_t value : from) to[starts[d][digit(value, d)]++] = value;
    std::swap(from, to);
  }
  if (from.data() != list.data()) std::ranges::copy(from, list.begin());
}

Status check_selection(std::span<const std::int32_t> list, std::int64_t own) {
  std::int32_t before = -1;
  for (std::size_t i = 0; i < list.size(); before = list[i++]) {
    const std::int32_t position = list[i];
    const bool behind = i > 0 && before == -1;
    if (position == -1 || (!behind && position > before && position <= own)) continue;
    const std::string bound =
        behind               ? ", must be -1 behind a -1"
        : position == before ? " again"
        : position >= 0 && position < before
            ? fmt::format(", must be above {}", before)
            : fmt::format(", must be a position from 0 to {}, the token's own, or -1", own);
    return {ErrorCode::kInvalidArgument, fmt::format("selected[{}] is {}{}", i, position, bound)};
  }
  return {};
}

}  // namespace tributary::wire
