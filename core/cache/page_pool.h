// The sequencer's account of one worker's pages: which are free, used or reserved.
#pragma once

#include <cstdint>
#include <vector>

namespace tributary {

/// Pages are numbered 0 .. total - 1. A page is used (by as many as its reference count), idle (by
/// nobody, but its rows are kept) or free. `reserved` pages are promised to sequences that will
/// grow; only the rest can be promised again, and a promise counts on idle pages too.
/// free + idle + used == total and reserved <= free + idle hold at every moment. A call that throws
/// changes nothing.
class PagePool {
 public:
  /// Throws kInvalidArgument for a negative count.
  explicit PagePool(std::int32_t total);

  [[nodiscard]] std::int32_t total() const noexcept {
    return static_cast<std::int32_t>(pages_.size());
  }
  [[nodiscard]] std::int32_t used() const noexcept {
    return begun_ - static_cast<std::int32_t>(returned_.size()) - idle_;
  }
  [[nodiscard]] std::int32_t idle() const noexcept { return idle_; }
  [[nodiscard]] std::int32_t free() const noexcept { return total() - used() - idle_; }
  [[nodiscard]] std::int32_t reserved() const noexcept { return reserved_; }
  /// Pages that may still be promised: free + idle - reserved.
  [[nodiscard]] std::int32_t available() const noexcept { return total() - used() - reserved_; }

  /// Promises `pages`; throws kPoolFull when more than available(), kInvalidArgument when negative.
  void reserve(std::int32_t pages);
  /// Takes a promise back; throws kInternal when more than reserved(), kInvalidArgument when
  /// negative.
  void unreserve(std::int32_t pages);
  /// Turns one promised page into a used one with reference count 1. Lowest number first, so that
  /// the same requests give the same pages. Throws kInternal when nothing is reserved, or no page
  /// is free: then forget() an idle one first.
  [[nodiscard]] std::int32_t allocate_reserved();
  /// Adds an owner of a page that is used or idle (prefix sharing). Throws kInternal for a free
  /// page, kPoolFull for an idle one that is promised.
  void retain(std::int32_t page);
  /// Removes an owner; returns true when nobody uses the page any more. Throws kInternal for a page
  /// that is not used.
  bool release(std::int32_t page);
  /// The rows of a used page are kept when nobody uses it any more. Throws kInternal for a page
  /// that is not used.
  void keep(std::int32_t page);
  /// Takes keep() back: an idle page becomes free. Throws kInternal for a page that is not kept.
  void forget(std::int32_t page);
  [[nodiscard]] bool kept(std::int32_t page) const { return at(page).kept; }
  /// 0 for a free page. Throws kInvalidArgument outside 0 .. total - 1.
  [[nodiscard]] std::int32_t reference_count(std::int32_t page) const;

 private:
  struct Page {
    std::int32_t references : 31 = 0;
    bool kept : 1 = false;
  };
  [[nodiscard]] const Page& at(std::int32_t page) const;
  [[nodiscard]] Page& used_page(std::int32_t page, const char* what);
  void give_back(std::int32_t page);

  std::vector<Page> pages_;
  // Free pages: the returned ones and those from `begun_` on, which were never used. A heap of all,
  // a million on one worker, would cost more cache misses than all other work of an admission.
  std::int32_t begun_ = 0;
  std::vector<std::int32_t> returned_;  // min-heap, all below begun_
  std::int32_t reserved_ = 0;
  std::int32_t idle_ = 0;
};

}  // namespace tributary
