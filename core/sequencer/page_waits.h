// Sequences that wait for one worker with all their pages must not wait for ever while shorter ones
// overtake them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/placement/placement.h"

namespace tributary {

/// Remembers the largest request of spread `auto` that was refused and how many pages went to
/// others since. Requests have no name that a repetition keeps, so the size stands for it: what is
/// as large as the one that was refused is taken for it. A pool's worth of one worker's pages is
/// enough: that many went to others while none of the workers had them for this one. So a request
/// waits for as many such turns as there are larger ones, and no clock decides.
class PageWaits {
 public:
  explicit PageWaits(std::int64_t pages_per_worker) : most_overtaken_(pages_per_worker) {}

  [[nodiscard]] PageCut may_cut(std::int64_t pages) const noexcept {
    return largest_ > 0 && pages >= largest_ && overtaken_ >= most_overtaken_ ? PageCut::kAlways
                                                                              : PageCut::kIfItPays;
  }
  void refused(std::int64_t pages) noexcept {
    if (pages <= largest_) return;
    largest_ = pages;
    overtaken_ = 0;
  }
  void admitted(std::int64_t pages) noexcept {
    if (pages >= largest_) {
      largest_ = overtaken_ = 0;
    } else {
      overtaken_ = std::min(overtaken_ + pages, most_overtaken_);
    }
  }

 private:
  std::int64_t most_overtaken_;
  std::int64_t largest_ = 0;  // refused and not seen again; 0: none
  std::int64_t overtaken_ = 0;
};

}  // namespace tributary
