// Each worker's pages, and the named blocks that lie in them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/cache/block_store.h"
#include "core/cache/page_pool.h"
#include "core/placement/pool_load.h"

namespace tributary {

class PoolPages {
 public:
  /// Tells `load`, which outlives it, how many pages each worker has to give. Throws
  /// kInvalidArgument for less than a page per worker.
  PoolPages(int workers, std::int32_t pages_per_worker, PoolLoad& load);

  [[nodiscard]] std::span<const PagePool> pools() const noexcept { return pools_; }
  [[nodiscard]] const BlockStore& blocks() const noexcept { return blocks_; }
  /// Whether a worker is being emptied, or lost: it has no page to give, and keeps no block.
  [[nodiscard]] bool draining(std::int32_t worker) const {
    return draining_[static_cast<std::size_t>(worker)] || lost(worker);
  }
  void set_draining(std::int32_t worker, bool drain);
  [[nodiscard]] bool lost(std::int32_t worker) const {
    return lost_[static_cast<std::size_t>(worker)];
  }
  /// One that is taken again is not being emptied.
  void set_lost(std::int32_t worker, bool lost);

  /// Throws kPoolFull, with nothing changed.
  void reserve(std::int32_t worker, std::int64_t pages);
  void unreserve(std::int32_t worker, std::int64_t pages);
  /// Takes pages out of the reservations; where none is free, those of blocks that are idle for the
  /// longest time.
  [[nodiscard]] std::vector<std::int32_t> take(std::int32_t worker, std::int64_t count);
  /// One user more of pages that are used.
  void share(std::int32_t worker, std::span<const std::int32_t> pages);
  /// A sequence uses these pages no longer.
  void release(std::int32_t worker, std::span<const std::int32_t> pages);

  // Named blocks. Their pages are kept when nobody uses them any more, until others need the room.

  /// Names pages that a sequence uses, which holds the block then. Null, and nothing happens, where
  /// the worker has a block of that name, or a page belongs to another block.
  NamedBlock* name_block(std::string name, std::int32_t worker, std::vector<std::int32_t> pages);
  /// A sequence more uses the block and its pages. Throws kPoolFull where idle ones are promised.
  void share_block(NamedBlock& block);
  /// A sequence no longer holds the block; its pages are left to the caller. Where nobody else
  /// does, and with `keep`, it is idle, unless its worker is being emptied: else it is forgotten.
  void leave_block(NamedBlock& block, bool keep = true);

 private:
  void sync_available(std::int32_t worker);
  void forget_idle_blocks(std::int32_t worker);
  void forget_block(NamedBlock& block);

  PoolLoad& load_;
  std::vector<PagePool> pools_;
  BlockStore blocks_;
  std::vector<bool> draining_;  // by worker
  std::vector<bool> lost_;      // by worker
};

}  // namespace tributary
