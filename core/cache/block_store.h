// The named blocks of a pool: rows of a prompt's beginning that other sequences may share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tributary {

/// Full pages of all layers on one worker. Nobody writes into them.
struct NamedBlock {
  std::string name;                 // of all tokens up to its end, see block_names()
  std::int32_t worker = 0;          // that has the pages
  std::vector<std::int32_t> pages;  // in order
  std::int64_t users = 0;           // sequences that hold it; 0: it is idle

  std::list<NamedBlock*>::iterator place = {};  // among the idle ones
};

/// Blocks by name, at most one of a name on a worker, and the idle ones in the order in which they
/// became idle. It knows names alone: whoever adds and erases cares for the pages (PoolPages).
/// References to a block stay valid until it is erased.
class BlockStore {
 public:
  explicit BlockStore(int workers) : idle_(static_cast<std::size_t>(workers)) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t idle() const noexcept { return idle_count_; }
  /// The blocks of a name, on one worker each.
  [[nodiscard]] std::span<const std::unique_ptr<NamedBlock>> copies(const std::string& name) const;
  /// Null where there is none.
  [[nodiscard]] NamedBlock* find(const std::string& name, std::int32_t worker) const;

  /// Adds a block that its first user holds. Throws kAlreadyExists.
  NamedBlock& add(std::string name, std::int32_t worker, std::vector<std::int32_t> pages);
  /// One user more.
  void hold(NamedBlock& block);
  /// One user less; without any it is idle.
  void release(NamedBlock& block);
  /// Forgets an idle block; throws kInternal for one that is held.
  void erase(NamedBlock& block);
  /// Null where none of the worker's is idle.
  [[nodiscard]] NamedBlock* longest_idle(std::int32_t worker) const;

 private:
  std::unordered_map<std::string, std::vector<std::unique_ptr<NamedBlock>>> blocks_;
  std::vector<std::list<NamedBlock*>> idle_;  // by worker, longest idle first
  std::size_t size_ = 0;
  std::size_t idle_count_ = 0;
};

}  // namespace tributary
