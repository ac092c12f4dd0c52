#include "core/sequencer/sequence_blocks.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {

void SequenceBlocks::begin(SequenceId id, std::int32_t block_tokens, std::vector<std::string> names,
                           std::vector<NamedBlock*> shared) {
  if (names.empty()) return;
  entries_.emplace(id, Entry{block_tokens, std::move(names), std::move(shared)});
}

void SequenceBlocks::prompt_arrived(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  name(id, found->second, std::exchange(found->second.names, {}), 0);
}

void SequenceBlocks::name(SequenceId id, std::int32_t block_tokens, std::vector<std::string> names,
                          std::int64_t first) {
  Entry& entry = entries_.try_emplace(id, Entry{block_tokens, {}, {}}).first->second;
  if (entry.block_tokens != block_tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: blocks of {} tokens, it has those of {}", id,
         block_tokens, entry.block_tokens);
  }
  name(id, entry, std::move(names), static_cast<std::size_t>(first));
}

void SequenceBlocks::name(SequenceId id, Entry& entry, std::vector<std::string> names,
                          std::size_t first) {
  const Sequence& s = ledger_.table().at(id);
  const int leaf_tokens = ledger_.table().leaf_tokens();
  const std::int64_t block_pages = entry.block_tokens / kPageTokens;
  entry.blocks.resize(std::max(entry.blocks.size(), first + names.size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (entry.blocks[first + i] != nullptr || names[i].empty()) continue;
    const std::int64_t begin = static_cast<std::int64_t>(first + i) * entry.block_tokens;
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(begin / leaf_tokens)];
    const auto page = leaf.pages.begin() + begin % leaf_tokens / kPageTokens;
    entry.blocks[first + i] =
        ledger_.pages().name_block(std::move(names[i]), leaf.owner, {page, page + block_pages});
  }
}

void SequenceBlocks::drop_from(SequenceId id, std::int64_t length) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const auto whole = static_cast<std::size_t>(length / entry.block_tokens);
  const bool splits_one = length % entry.block_tokens != 0;
  entry.names.resize(std::min(entry.names.size(), whole));
  for (std::size_t i = whole; i < entry.blocks.size(); ++i) {
    if (entry.blocks[i] != nullptr)
      ledger_.pages().leave_block(*entry.blocks[i], !(splits_one && i == whole));
  }
  entry.blocks.resize(std::min(entry.blocks.size(), whole));
}

bool SequenceBlocks::holds(SequenceId id, std::int64_t position) const {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  const auto block = static_cast<std::size_t>(position / found->second.block_tokens);
  return block < found->second.blocks.size() && found->second.blocks[block] != nullptr;
}

void SequenceBlocks::moved(SequenceId id, std::int64_t first_leaf, std::int32_t to,
                           const std::vector<std::int32_t>& pages) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const std::int64_t block_pages = entry.block_tokens / kPageTokens;
  const auto leaf_blocks = ledger_.table().leaf_tokens() / entry.block_tokens;
  const auto begin = static_cast<std::size_t>(first_leaf * leaf_blocks);
  const std::size_t end =
      std::min(entry.blocks.size(), begin + pages.size() / static_cast<std::size_t>(block_pages));
  auto first = pages.begin();
  for (std::size_t i = begin; i < end; ++i, first += block_pages) {
    NamedBlock* const before = entry.blocks[i];
    if (before == nullptr) continue;
    entry.blocks[i] = ledger_.pages().name_block(before->name, to, {first, first + block_pages});
    ledger_.pages().leave_block(*before);
  }
}

void SequenceBlocks::lose(SequenceId id, std::int64_t leaf, bool keep) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const std::int64_t leaf_blocks = ledger_.table().leaf_tokens() / entry.block_tokens;
  const std::int64_t end = std::min(std::ssize(entry.blocks), (leaf + 1) * leaf_blocks);
  for (std::int64_t b = end; b-- > leaf * leaf_blocks;) {
    const auto i = static_cast<std::size_t>(b);
    if (entry.blocks[i] == nullptr) continue;
    entry.names.resize(std::max(entry.names.size(), i + 1));
    entry.names[i] = entry.blocks[i]->name;
    ledger_.pages().leave_block(*std::exchange(entry.blocks[i], nullptr), keep);
  }
}

void SequenceBlocks::end(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  const std::vector<NamedBlock*>& blocks = found->second.blocks;
  for (std::size_t i = blocks.size(); i-- > 0;) {
    if (blocks[i] != nullptr) ledger_.pages().leave_block(*blocks[i]);
  }
  entries_.erase(found);
}

}  // namespace tributary
