#include "core/sequencer/sequence_blocks.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "core/base/limits.h"

namespace tributary {

void SequenceBlocks::begin(SequenceId id, std::int32_t block_tokens, std::vector<std::string> names,
                           std::vector<Block*> shared) {
  if (names.empty()) return;
  entries_.emplace(id, Entry{block_tokens, std::move(names), std::move(shared)});
}

void SequenceBlocks::name(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const Sequence& s = ledger_.table().at(id);
  const int leaf_tokens = ledger_.table().leaf_tokens();
  const std::int64_t block_pages = entry.block_tokens / kPageTokens;
  for (std::size_t i = entry.blocks.size(); i < entry.names.size(); ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(i) * entry.block_tokens;
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(begin / leaf_tokens)];
    const auto first = leaf.pages.begin() + begin % leaf_tokens / kPageTokens;
    entry.blocks.push_back(
        ledger_.name_block(std::move(entry.names[i]), leaf.owner, {first, first + block_pages}));
  }
  entry.names = {};
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
      ledger_.leave_block(*entry.blocks[i], !(splits_one && i == whole));
  }
  entry.blocks.resize(std::min(entry.blocks.size(), whole));
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
    Block* const before = entry.blocks[i];
    if (before == nullptr) continue;
    entry.blocks[i] = ledger_.name_block(before->name, to, {first, first + block_pages});
    ledger_.leave_block(*before);
  }
}

void SequenceBlocks::end(SequenceId id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  for (Block* block : std::views::reverse(found->second.blocks)) {
    if (block != nullptr) ledger_.leave_block(*block);
  }
  entries_.erase(found);
}

}  // namespace tributary
