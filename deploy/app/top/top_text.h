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

/// As many of the lines as a terminal of `rows` shows; the last one says how many are left out.
[[nodiscard]] std::vector<std::string> fit_lines(std::vector<std::string> lines, std::size_t rows);

}  // namespace tributary
