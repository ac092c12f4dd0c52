// The named blocks that each sequence holds, and those that it will name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/cache/block_store.h"
#include "core/cache/sequence_table.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

/// A sequence holds a block from its admission, or from the arrival of its own prompt, until it
/// ends, drops the block's rows or has moved them. Its pages are the caller's affair.
class SequenceBlocks {
 public:
  /// The ledger outlives it.
  explicit SequenceBlocks(PoolLedger& ledger) : ledger_(ledger) {}

  /// A sequence begins with `shared` blocks, whose pages it uses, of those that are named `names`.
  void begin(SequenceId id, std::int32_t block_tokens, std::vector<std::string> names,
             std::vector<NamedBlock*> shared);
  /// All rows of the prompt are here: names its blocks that have no name yet on their worker.
  void prompt_arrived(SequenceId id);
  /// The same of other blocks whose rows are here, from block `first` on. Throws kInvalidArgument
  /// for another size of blocks than begin() was given.
  void name(SequenceId id, std::int32_t block_tokens, std::vector<std::string> names,
            std::int64_t first);
  /// The sequence is about to drop the rows from `length` on. A block that nobody else holds and
  /// that loses a part has no name any more: what is left of it may be written to.
  void drop_from(SequenceId id, std::int64_t length);
  /// Whether the sequence holds a named block that has the row at `position`.
  [[nodiscard]] bool holds(SequenceId id, std::int64_t position) const;
  /// Leaves from `first_leaf` on, as many as fill `pages`, have moved there.
  void moved(SequenceId id, std::int64_t first_leaf, std::int32_t to,
             const std::vector<std::int32_t>& pages);
  /// The rows of a leaf are lost: its blocks are not held any more, and get their names again by
  /// prompt_arrived(). With `keep` others may share them until the room is needed.
  void lose(SequenceId id, std::int64_t leaf, bool keep);
  /// The sequence's pages are given back. Its last block becomes idle first: the next one is of no
  /// use without those before.
  void end(SequenceId id);

 private:
  struct Entry {
    std::int32_t block_tokens = 0;
    std::vector<std::string> names;   // until all rows are here; empty: of a block that is held
    std::vector<NamedBlock*> blocks;  // from the first on; null: without a name, or not held
  };

  void name(SequenceId id, Entry& entry, std::vector<std::string> names, std::size_t first);

  PoolLedger& ledger_;
  std::unordered_map<SequenceId, Entry> entries_;  // that have named blocks
};

}  // namespace tributary
