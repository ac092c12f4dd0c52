#include "core/cache/sequence_table.h"

#include <bit>
#include <utility>

#include "core/base/error.h"
#include "core/interface/backend.h"

namespace tributary {

SequenceTable::SequenceTable(int leaf_tokens) : leaf_tokens_(leaf_tokens) {
  const auto tokens = static_cast<unsigned>(leaf_tokens);
  if (leaf_tokens < kPageTokens || !std::has_single_bit(tokens)) {
    fail(ErrorCode::kInvalidArgument,
         "leaf_tokens is {}, expected a power-of-two multiple of the page ({} tokens)", leaf_tokens,
         kPageTokens);
  }
}

const Sequence& SequenceTable::at(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) fail(ErrorCode::kNotFound, "sequence {:#x} is not in the pool", id);
  return it->second;
}

Sequence& SequenceTable::find(SequenceId id) { return const_cast<Sequence&>(at(id)); }

void SequenceTable::apply(const TableOp& op) {
  std::visit([this](const auto& alternative) { apply_op(alternative); }, op);
}

void SequenceTable::apply_op(const AdmitOp& op) {
  const Sequence& s = op.sequence;
  if (std::cmp_not_equal(s.leaves.size(), ceil_div(s.limit_tokens, leaf_tokens_))) {
    fail(ErrorCode::kInvalidArgument, "sequence {:#x} of at most {} tokens has {} leaves, expected {}",
         s.id, s.limit_tokens, s.leaves.size(), ceil_div(s.limit_tokens, leaf_tokens_));
  }
  if (!sequences_.emplace(s.id, s).second) {
    fail(ErrorCode::kInvalidArgument, "sequence {:#x} is already in the pool", s.id);
  }
}

void SequenceTable::apply_op(const ExtendOp& op) {
  Sequence& s = find(op.id);
  if (op.leaf < 0 || std::cmp_greater_equal(op.leaf, s.leaves.size())) {
    fail(ErrorCode::kInvalidArgument, "leaf {} of sequence {:#x}: it has {} leaves", op.leaf, op.id,
         s.leaves.size());
  }
  Leaf& leaf = s.leaves[static_cast<std::size_t>(op.leaf)];
  leaf.owner = op.owner;
  leaf.pages.insert(leaf.pages.end(), op.pages.begin(), op.pages.end());
}

void SequenceTable::apply_op(const CommitOp& op) {
  Sequence& s = find(op.id);
  if (op.accepted < 0 || s.length + op.accepted > s.limit_tokens) {
    fail(ErrorCode::kInvalidArgument, "commit of {} tokens to sequence {:#x}: length {}, limit {}",
         op.accepted, op.id, s.length, s.limit_tokens);
  }
  s.length += op.accepted;
}

void SequenceTable::apply_op(const TruncateOp& op) {
  Sequence& s = find(op.id);
  if (op.length < 0 || op.length > s.length) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {:#x} to {} tokens: length is {}", op.id,
         op.length, s.length);
  }
  s.length = op.length;
  s.epoch = op.epoch;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const std::int64_t rows = op.length - static_cast<std::int64_t>(i) * leaf_tokens_;
    const auto keep = static_cast<std::size_t>(rows <= 0 ? 0 : ceil_div(rows, kPageTokens));
    auto& pages = s.leaves[i].pages;
    if (pages.size() > keep) pages.resize(keep);
  }
}

void SequenceTable::apply_op(const FreeOp& op) {
  if (sequences_.erase(op.id) == 0) {
    fail(ErrorCode::kNotFound, "sequence {:#x} is not in the pool", op.id);
  }
}

}  // namespace tributary
