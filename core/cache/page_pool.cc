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
  pages_.resize(static_cast<std::size_t>(total));
}

void PagePool::reserve(std::int32_t pages) {
  if (pages < 0) {
    fail(ErrorCode::kInvalidArgument, "page pool: reserve {} pages, expected at least 0", pages);
  }
  if (pages > available()) {
    fail(ErrorCode::kPoolFull,
         "page pool: {} pages wanted, {} available ({} pages, {} used, {} reserved, {} idle)",
         pages, available(), total(), used(), reserved_, idle_);
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
  if (free() == 0) {
    fail(ErrorCode::kInternal, "page pool: allocation while none of {} pages is free, {} are idle",
         total(), idle_);
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
  pages_[static_cast<std::size_t>(page)].references = 1;
  return page;
}

void PagePool::retain(std::int32_t page) {
  const bool is_idle = page >= 0 && page < total() && kept(page) && reference_count(page) == 0;
  if (!is_idle) {
    ++used_page(page, "retain").references;
    return;
  }
  if (available() == 0) {
    fail(ErrorCode::kPoolFull, "page pool: idle page {} is promised ({} reserved, {} idle)", page,
         reserved_, idle_);
  }
  --idle_;
  pages_[static_cast<std::size_t>(page)].references = 1;
}

bool PagePool::release(std::int32_t page) {
  Page& one = used_page(page, "release");
  if (--one.references > 0) return false;
  if (one.kept) {
    ++idle_;
  } else {
    give_back(page);
  }
  return true;
}

void PagePool::keep(std::int32_t page) {
  used_page(page, "keeping").kept = true;
}

void PagePool::forget(std::int32_t page) {
  if (!kept(page)) fail(ErrorCode::kInternal, "forgetting of page {}: it is not kept", page);
  Page& one = pages_[static_cast<std::size_t>(page)];
  one.kept = false;
  if (one.references > 0) return;
  --idle_;
  give_back(page);
}

void PagePool::give_back(std::int32_t page) {
  returned_.push_back(page);
  std::push_heap(returned_.begin(), returned_.end(), std::greater<>{});
}

std::int32_t PagePool::reference_count(std::int32_t page) const {
  return at(page).references;
}

const PagePool::Page& PagePool::at(std::int32_t page) const {
  if (page < 0 || page >= total()) {
    fail(ErrorCode::kInvalidArgument, "page {}: pool holds {} pages", page, total());
  }
  return pages_[static_cast<std::size_t>(page)];
}

PagePool::Page& PagePool::used_page(std::int32_t page, const char* what) {
  if (page < 0 || page >= total()) {
    fail(ErrorCode::kInternal, "{} of page {}: pool holds {} pages", what, page, total());
  }
  Page& one = pages_[static_cast<std::size_t>(page)];
  if (one.references == 0) fail(ErrorCode::kInternal, "{} of page {}: it is free", what, page);
  return one;
}

}  // namespace tributary
