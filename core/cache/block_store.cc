#include "core/cache/block_store.h"

#include <algorithm>

#include "core/base/error.h"

namespace tributary {

std::span<const std::unique_ptr<NamedBlock>> BlockStore::copies(const std::string& name) const {
  const auto found = blocks_.find(name);
  if (found == blocks_.end()) return {};
  return found->second;
}

NamedBlock* BlockStore::find(const std::string& name, std::int32_t worker) const {
  for (const auto& block : copies(name)) {
    if (block->worker == worker) return block.get();
  }
  return nullptr;
}

NamedBlock& BlockStore::add(std::string name, std::int32_t worker,
                            std::vector<std::int32_t> pages) {
  if (find(name, worker) != nullptr) {
    fail(ErrorCode::kAlreadyExists, "worker {} has a block of that name", worker);
  }
  auto& copies = blocks_[name];
  copies.push_back(std::make_unique<NamedBlock>(NamedBlock{
      .name = std::move(name), .worker = worker, .pages = std::move(pages), .users = 1}));
  ++size_;
  return *copies.back();
}

void BlockStore::hold(NamedBlock& block) {
  if (block.users++ > 0) return;
  idle_[static_cast<std::size_t>(block.worker)].erase(block.place);
  --idle_count_;
}

void BlockStore::release(NamedBlock& block) {
  if (block.users == 0) {
    fail(ErrorCode::kInternal, "release of a block on worker {} that is idle", block.worker);
  }
  if (--block.users > 0) return;
  auto& idle = idle_[static_cast<std::size_t>(block.worker)];
  block.place = idle.insert(idle.end(), &block);
  ++idle_count_;
}

void BlockStore::erase(NamedBlock& block) {
  if (block.users > 0) {
    fail(ErrorCode::kInternal, "erasure of a block on worker {} that {} sequences hold",
         block.worker, block.users);
  }
  idle_[static_cast<std::size_t>(block.worker)].erase(block.place);
  --idle_count_;
  --size_;
  const auto named = blocks_.find(block.name);
  if (named->second.size() == 1) {
    blocks_.erase(named);
  } else {
    std::erase_if(named->second, [&](const auto& copy) { return copy.get() == &block; });
  }
}

NamedBlock* BlockStore::longest_idle(std::int32_t worker) const {
  const auto& idle = idle_[static_cast<std::size_t>(worker)];
  return idle.empty() ? nullptr : idle.front();
}

}  // namespace tributary
