// The unit in which leaves move between workers, and in which a page that is shared becomes
// another's own: the rows of one layer of one page.
#pragma once

#include <cstdint>

#include "core/base/limits.h"

namespace tributary {

/// The first `rows` rows of one layer of a page of worker `from` are copied to a page of worker
/// `to`, which may be the same.
struct PageCopy {
  std::int32_t from = 0;
  std::int32_t from_page = 0;
  std::int32_t to = 0;
  std::int32_t to_page = 0;
  std::int32_t layer = 0;
  std::int32_t rows = kPageTokens;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

}  // namespace tributary
