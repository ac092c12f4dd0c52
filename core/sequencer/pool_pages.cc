#include "core/sequencer/pool_pages.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace tributary {

PoolPages::PoolPages(int workers, std::int32_t pages_per_worker, PoolLoad& load)
    : load_(load), blocks_(workers) {
  if (pages_per_worker < 1) {
    fail(ErrorCode::kInvalidArgument, "pages per worker is {}, expected at least 1",
         pages_per_worker);
  }
  pools_.assign(static_cast<std::size_t>(workers), PagePool(pages_per_worker));
  draining_.assign(pools_.size(), false);
  lost_.assign(pools_.size(), false);
}

void PoolPages::set_draining(std::int32_t worker, bool drain) {
  draining_[static_cast<std::size_t>(worker)] = drain;
  if (drain) forget_idle_blocks(worker);
  sync_available(worker);
}

void PoolPages::set_lost(std::int32_t worker, bool lost) {
  lost_[static_cast<std::size_t>(worker)] = lost;
  draining_[static_cast<std::size_t>(worker)] = false;
  if (lost) forget_idle_blocks(worker);
  sync_available(worker);
}

void PoolPages::forget_idle_blocks(std::int32_t worker) {
  while (blocks_.longest_idle(worker) != nullptr) forget_block(*blocks_.longest_idle(worker));
}

void PoolPages::reserve(std::int32_t worker, std::int64_t pages) {
  pools_[static_cast<std::size_t>(worker)].reserve(static_cast<std::int32_t>(pages));
  sync_available(worker);
}

void PoolPages::unreserve(std::int32_t worker, std::int64_t pages) {
  pools_[static_cast<std::size_t>(worker)].unreserve(static_cast<std::int32_t>(pages));
  sync_available(worker);
}

/// Available pages stay as many: reserved ones do not count.
std::vector<std::int32_t> PoolPages::take(std::int32_t worker, std::int64_t count) {
  std::vector<std::int32_t> pages;
  pages.reserve(static_cast<std::size_t>(count));
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  while (std::ssize(pages) < count) {
    while (pool.free() == 0 && blocks_.longest_idle(worker) != nullptr) {
      forget_block(*blocks_.longest_idle(worker));
    }
    pages.push_back(pool.allocate_reserved());
  }
  return pages;
}

void PoolPages::share(std::int32_t worker, std::span<const std::int32_t> pages) {
  for (const std::int32_t page : pages) pools_[static_cast<std::size_t>(worker)].retain(page);
}

void PoolPages::release(std::int32_t worker, std::span<const std::int32_t> pages) {
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  for (const std::int32_t page : pages) (void)pool.release(page);
  sync_available(worker);
}

NamedBlock* PoolPages::name_block(std::string name, std::int32_t worker,
                                  std::vector<std::int32_t> pages) {
  PagePool& pool = pools_[static_cast<std::size_t>(worker)];
  if (blocks_.find(name, worker) != nullptr) return nullptr;
  if (std::ranges::any_of(pages, [&](std::int32_t page) { return pool.kept(page); })) {
    return nullptr;
  }
  for (const std::int32_t page : pages) pool.keep(page);
  return &blocks_.add(std::move(name), worker, std::move(pages));
}

void PoolPages::share_block(NamedBlock& block) {
  PagePool& pool = pools_[static_cast<std::size_t>(block.worker)];
  const auto idle = std::ranges::count_if(
      block.pages, [&](std::int32_t page) { return pool.reference_count(page) == 0; });
  if (pool.available() < idle) {
    fail(ErrorCode::kPoolFull, "worker {}: {} idle pages of a block are promised", block.worker,
         idle);
  }
  for (const std::int32_t page : block.pages) pool.retain(page);
  blocks_.hold(block);
  sync_available(block.worker);
}

void PoolPages::leave_block(NamedBlock& block, bool keep) {
  blocks_.release(block);
  if (block.users == 0 && (!keep || draining(block.worker))) forget_block(block);
}

/// The name of an idle block is gone, and pages that nobody uses are free.
void PoolPages::forget_block(NamedBlock& block) {
  PagePool& pool = pools_[static_cast<std::size_t>(block.worker)];
  for (const std::int32_t page : block.pages) pool.forget(page);
  blocks_.erase(block);
}

void PoolPages::sync_available(std::int32_t worker) {
  const bool gets_none = draining(worker);
  load_.set_available_pages(worker,
                            gets_none ? 0 : pools_[static_cast<std::size_t>(worker)].available());
}

}  // namespace tributary
