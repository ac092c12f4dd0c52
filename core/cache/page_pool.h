// The sequencer's account of one worker's pages: which are free, used or reserved.
#pragma once

#include <cstdint>
#include <vector>

namespace tributary {

/// Pages are numbered 0 .. total - 1. A page is free (reference count 0) or used. Of the free
/// pages, `reserved` are promised to sequences that will grow; only the rest can be promised again.
/// free + used == total and reserved <= free hold at every moment. A call that throws changes
/// nothing.
class PagePool {
 public:
  /// Throws kInvalidArgument for a negative count.
  explicit PagePool(std::int32_t total);

  [[nodiscard]] std::int32_t total() const noexcept {
    return static_cast<std::int32_t>(references_.size());
  }
  [[nodiscard]] std::int32_t used() const noexcept {
    return begun_ - static_cast<std::int32_t>(returned_.size());
  }
  [[nodiscard]] std::int32_t reserved() const noexcept { return reserved_; }
  /// Pages that may still be promised: free - reserved.
  [[nodiscard]] std::int32_t available() const noexcept { return total() - used() - reserved_; }

  /// Promises `pages`; throws kPoolFull when more than available(), kInvalidArgument when negative.
  void reserve(std::int32_t pages);
  /// Takes a promise back; throws kInternal when more than reserved(), kInvalidArgument when
  /// negative.
  void unreserve(std::int32_t pages);
  /// Turns one promised page into a used one with reference count 1. Lowest number first, so that
  /// the same requests give the same pages. Throws kInternal when nothing is reserved.
  [[nodiscard]] std::int32_t allocate_reserved();
  /// Adds an owner of a used page (prefix sharing). Throws kInternal for a page that is not used.
  void retain(std::int32_t page);
  /// Removes an owner; returns true when the page became free. Throws kInternal for a page that is
  /// not used.
  bool release(std::int32_t page);
  /// 0 for a free page. Throws kInvalidArgument outside 0 .. total - 1.
  [[nodiscard]] std::int32_t reference_count(std::int32_t page) const;

 private:
  std::int32_t& references_of_used(std::int32_t page, const char* what);

  std::vector<std::int32_t> references_;  // per page
  // Free pages: the returned ones and those from `begun_` on, which were never used. A heap of all,
  // a million on one worker, would cost more cache misses than all other work of an admission.
  std::int32_t begun_ = 0;
  std::vector<std::int32_t> returned_;  // min-heap, all below begun_
  std::int32_t reserved_ = 0;
};

}  // namespace tributary
