#include "core/cache/page_pool.h"

#include <algorithm>
#include <cstddef>
#include <functional>

#include "core/base/error.h"

namespace tributary {

PagePool::PagePool(std::int32_t total) {
  if (total < 0) {
    fail(ErrorCode::kInvalidArgument, "page pool: {} pages, expected at least 0", total);
  }
  references_.assign(static_cast<std::size_t>(total), 0);
}

void PagePool::reserve(std::int32_t pages) {
  if (pages < 0) {
    fail(ErrorCode::kInvalidArgument, "page pool: reserve {} pages, expected at least 0", pages);
  }
  if (pages > available()) {
    fail(ErrorCode::kPoolFull,
         "page pool: {} pages wanted, {} available ({} pages, {} used, {} reserved)", pages,
         available(), total(), used(), reserved_);
  }
  reserved_ += pages;
}

void PagePool::unreserve(std::int32_t pages) {
  if (pages < 0) {
    fail(ErrorCode::kInvalidArgument, "page pool: unreserve {} pages, expected at least 0", pages);
  }
  if (pages > reserved_) {
    fail(ErrorCode::kInternal, "page pool: unreserve {} pages, {} are reserved", pages, reserved_);
  }
  reserved_ -= pages;
}

std::int32_t PagePool::allocate_reserved() {
  if (reserved_ == 0) {
    fail(ErrorCode::kInternal, "page pool: allocation of a page that nobody reserved");
  }
  std::int32_t page = begun_;
  if (returned_.empty()) {
    ++begun_;
  } else {
    std::pop_heap(returned_.begin(), returned_.end(), std::greater<>{});
    page = returned_.back();
    returned_.pop_back();
  }
  --reserved_;
  references_[static_cast<std::size_t>(page)] = 1;
  return page;
}

void PagePool::retain(std::int32_t page) {
  ++references_of_used(page, "retain");
}

bool PagePool::release(std::int32_t page) {
  std::int32_t& references = references_of_used(page, "release");
  if (--references > 0) return false;
  returned_.push_back(page);
  std::push_heap(returned_.begin(), returned_.end(), std::greater<>{});
  return true;
}

std::int32_t PagePool::reference_count(std::int32_t page) const {
  if (page < 0 || page >= total()) {
    fail(ErrorCode::kInvalidArgument, "page {}: pool holds {} pages", page, total());
  }
  return references_[static_cast<std::size_t>(page)];
}

std::int32_t& PagePool::references_of_used(std::int32_t page, const char* what) {
  if (page < 0 || page >= total()) {
    fail(ErrorCode::kInternal, "{} of page {}: pool holds {} pages", what, page, total());
  }
  std::int32_t& references = references_[static_cast<std::size_t>(page)];
  if (references == 0) fail(ErrorCode::kInternal, "{} of page {}: it is free", what, page);
  return references;
}

}  // namespace tributary
