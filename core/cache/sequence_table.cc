#include "core/cache/sequence_table.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {

Status check_epoch(const Sequence& sequence, std::uint32_t epoch) {
  if (epoch == sequence.epoch) return {};
  if (sequence.lost_since > 0 && epoch >= sequence.lost_since && epoch < sequence.epoch) {
    return {ErrorCode::kWorkerLost,
            fmt::format("sequence {}: rows of epoch {} were lost with a worker, now is {}",
                        sequence.id, epoch, sequence.epoch)};
  }
  return {ErrorCode::kStaleEpoch, fmt::format("sequence {}: epoch {} is over, now is {}",
                                              sequence.id, epoch, sequence.epoch)};
}

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
  if (it == sequences_.end()) fail(ErrorCode::kNotFound, "sequence {} is not in the pool", id);
  return it->second;
}

Sequence& SequenceTable::find(SequenceId id) {
  return const_cast<Sequence&>(at(id));
}

std::vector<Sequence> SequenceTable::all() const {
  std::vector<Sequence> all;
  all.reserve(sequences_.size());
  for (const auto& [id, sequence] : sequences_) all.push_back(sequence);
  std::ranges::sort(all, {}, &Sequence::id);
  return all;
}

void SequenceTable::restore(std::span<const Sequence> all) {
  sequences_.clear();
  for (const Sequence& sequence : all) sequences_.emplace(sequence.id, sequence);
}

void SequenceTable::apply(const TableOp& op) {
  std::visit([this](const auto& alternative) { apply_op(alternative); }, op);
}

/// Pages that hold the first `length` rows of a sequence, as far as they lie in leaf `leaf`.
std::size_t SequenceTable::leaf_pages(std::size_t leaf, std::int64_t length) const {
  const std::int64_t begin = static_cast<std::int64_t>(leaf) * leaf_tokens_;
  const std::int64_t rows = std::clamp<std::int64_t>(length - begin, 0, leaf_tokens_);
  return static_cast<std::size_t>(ceil_div(rows, kPageTokens));
}

/// Pages that a leaf needs whose rows were lost; 0 for one that has its rows, or none. Throws for a
/// leaf that does not exist.
std::size_t SequenceTable::lost_pages(const Sequence& s, std::int32_t leaf) const {
  if (leaf < 0 || std::cmp_greater_equal(leaf, s.leaves.size())) {
    fail(ErrorCode::kInvalidArgument, "leaf {} of sequence {}: it has {} leaves", leaf, s.id,
         s.leaves.size());
  }
  const auto i = static_cast<std::size_t>(leaf);
  return s.leaves[i].pages.empty() ? leaf_pages(i, s.length) : 0;
}

bool SequenceTable::gives_rows_back(const TableOp& op) const {
  const auto* extend = std::get_if<ExtendOp>(&op);
  return extend != nullptr && lost_pages(at(extend->id), extend->leaf) > 0;
}

void SequenceTable::apply_op(const AdmitOp& op) {
  const Sequence& s = op.sequence;
  if (s.length < 0 || s.length > s.limit_tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: length is {}, expected 0 .. its limit of {}",
         s.id, s.length, s.limit_tokens);
  }
  if (std::cmp_not_equal(s.leaves.size(), ceil_div(s.limit_tokens, leaf_tokens_))) {
    fail(ErrorCode::kInvalidArgument, "sequence {} of at most {} tokens has {} leaves, expected {}",
         s.id, s.limit_tokens, s.leaves.size(), ceil_div(s.limit_tokens, leaf_tokens_));
  }
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    if (s.leaves[i].pages.size() != leaf_pages(i, s.length)) {
      fail(ErrorCode::kInvalidArgument,
           "leaf {} of sequence {} of {} tokens has {} pages, expected {}", i, s.id, s.length,
           s.leaves[i].pages.size(), leaf_pages(i, s.length));
    }
  }
  if (s.present_tokens < 0 || s.present_tokens > s.prompt_tokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} tokens are present of a prompt of {}", s.id,
         s.present_tokens, s.prompt_tokens);
  }
  if (!sequences_.emplace(s.id, s).second) {
    fail(ErrorCode::kInvalidArgument, "sequence {} is already in the pool", s.id);
  }
}

void SequenceTable::apply_op(const ExtendOp& op) {
  Sequence& s = find(op.id);
  const std::size_t lost = lost_pages(s, op.leaf);
  Leaf& leaf = s.leaves[static_cast<std::size_t>(op.leaf)];
  const std::size_t pages = leaf.pages.size() + op.pages.size();
  const auto most = static_cast<std::size_t>(leaf_tokens_ / kPageTokens);
  if (pages > most) {
    fail(ErrorCode::kInvalidArgument, "leaf {} of sequence {}: {} pages, it holds {}", op.leaf,
         op.id, pages, most);
  }
  if (!leaf.pages.empty() && op.owner != leaf.owner) {
    fail(ErrorCode::kInvalidArgument, "leaf {} of sequence {}: worker {} has pages of it, not {}",
         op.leaf, op.id, leaf.owner, op.owner);
  }
  if (lost > 0 && op.pages.size() != lost) {
    fail(ErrorCode::kInvalidArgument,
         "leaf {} of sequence {}: {} pages for rows that were lost, expected {}", op.leaf, op.id,
         op.pages.size(), lost);
  }
  leaf.owner = op.owner;
  leaf.pages.insert(leaf.pages.end(), op.pages.begin(), op.pages.end());
}

void SequenceTable::apply_op(const CommitOp& op) {
  Sequence& s = find(op.id);
  if (op.accepted < 0 || s.length + op.accepted > s.limit_tokens) {
    fail(ErrorCode::kInvalidArgument, "commit of {} tokens to sequence {}: length {}, limit {}",
         op.accepted, op.id, s.length, s.limit_tokens);
  }
  s.length += op.accepted;
}

void SequenceTable::apply_op(const TruncateOp& op) {
  Sequence& s = find(op.id);
  if (op.length < 0 || op.length > s.length) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {} to {} tokens: length is {}", op.id,
         op.length, s.length);
  }
  if (op.epoch <= s.epoch) {
    fail(ErrorCode::kStaleEpoch, "truncate of sequence {} for epoch {}: it is at {}", op.id,
         op.epoch, s.epoch);
  }
  if (op.copied_page >= 0 && op.length % kPageTokens == 0) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {} to {} tokens: no page is left apart",
         op.id, op.length);
  }
  s.length = op.length;
  s.epoch = op.epoch;
  s.lost_since = 0;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    auto& pages = s.leaves[i].pages;
    pages.resize(std::min(pages.size(), leaf_pages(i, op.length)));
  }
  if (op.copied_page < 0) return;
  s.leaves[static_cast<std::size_t>(op.length / leaf_tokens_)].pages.back() = op.copied_page;
}

void SequenceTable::apply_op(const FreeOp& op) {
  if (sequences_.erase(op.id) == 0) {
    fail(ErrorCode::kNotFound, "sequence {} is not in the pool", op.id);
  }
}

void SequenceTable::apply_op(const MoveOp& op) {
  Sequence& s = find(op.id);
  const auto count = std::ssize(op.pages);
  std::int64_t end = std::max(op.first_leaf, 0);
  std::int64_t pages = 0;
  for (; end < std::ssize(s.leaves) && pages < count; ++end) {
    const auto held = std::ssize(s.leaves[static_cast<std::size_t>(end)].pages);
    if (held == 0) break;
    pages += held;
  }
  if (op.first_leaf < 0 || count == 0 || pages != count) {
    fail(ErrorCode::kInvalidArgument,
         "move of leaves of sequence {} from leaf {} on: {} pages, leaves up to {} have {}", op.id,
         op.first_leaf, count, end, pages);
  }
  auto page = op.pages.begin();
  for (std::int64_t l = op.first_leaf; l < end; ++l) {
    Leaf& leaf = s.leaves[static_cast<std::size_t>(l)];
    const auto held = std::ssize(leaf.pages);
    leaf.owner = op.owner;
    leaf.pages.assign(page, page + held);
    page += held;
  }
}

void SequenceTable::apply_op(const HomeOp& op) {
  find(op.id).home = op.home;
}

void SequenceTable::apply_op(const LoseOp& op) {
  Sequence& s = find(op.id);
  bool rows = false;
  for (const std::int32_t leaf : op.leaves) {
    if (leaf < 0 || std::cmp_greater_equal(leaf, s.leaves.size())) {
      fail(ErrorCode::kInvalidArgument, "loss of leaf {} of sequence {}: it has {} leaves", leaf,
           op.id, s.leaves.size());
    }
    rows = rows || std::int64_t{leaf} * leaf_tokens_ < s.length;
  }
  if (op.epoch < s.epoch || (rows && op.epoch == s.epoch)) {
    fail(ErrorCode::kStaleEpoch, "loss of rows of sequence {} for epoch {}: it is at {}", op.id,
         op.epoch, s.epoch);
  }
  if (op.epoch != s.epoch && s.lost_since == 0) s.lost_since = s.epoch;
  s.epoch = op.epoch;
  for (const std::int32_t leaf : op.leaves)
    s.leaves[static_cast<std::size_t>(leaf)] = {kNoWorker, {}};
}

void SequenceTable::apply_op(const RaiseLimitOp& op) {
  Sequence& s = find(op.id);
  const std::int64_t leaves = ceil_div(op.limit_tokens, leaf_tokens_);
  if (op.limit_tokens < s.limit_tokens || leaves != std::ssize(s.leaves) + std::ssize(op.owners)) {
    fail(ErrorCode::kInvalidArgument,
         "sequence {}: limit {} with {} more leaves; it has a limit of {} and {} leaves", op.id,
         op.limit_tokens, op.owners.size(), s.limit_tokens, s.leaves.size());
  }
  s.limit_tokens = op.limit_tokens;
  for (const std::int32_t owner : op.owners) s.leaves.push_back({owner, {}});
}

}  // namespace tributary
