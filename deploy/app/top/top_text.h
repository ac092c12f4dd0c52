// A tier's picture in a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "deploy/app/top/tier_sample.h"

namespace tributary {

/// The narrowest terminal that the layout is made for.
inline constexpr std::size_t kTopWidth = 80;

/// Rates and times are those between `before` and `now`. Lines have at most kTopWidth columns.
[[nodiscard]] std::vector<std::string> top_lines(const std::string& url, const TierSample& before,
                                                 const TierSample& now);

/// What a terminal of `rows` x `columns` shows of the lines from `first` on, each cut at the width;
/// the last row says which keys there are. `first` is brought into its bounds.
[[nodiscard]] std::vector<std::string> fit_lines(const std::vector<std::string>& lines,
                                                 std::size_t rows, std::size_t columns,
                                                 std::size_t& first);

}  // namespace tributary
