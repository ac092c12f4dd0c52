// Every running sequence as all workers of a pool know it: length, home, owner and pages of each
// leaf. The sequencer decides; every rank keeps an equal copy by applying the same operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/base/error.h"

namespace tributary {

/// The sequencer's incarnation in the upper 32 bits, then a counter; never reused.
using SequenceId = std::uint64_t;

/// Stands for the owner of a leaf whose worker was lost, and that waits for room on another one.
inline constexpr std::int32_t kNoWorker = -1;

struct Leaf {
  std::int32_t owner = 0;  // or kNoWorker
  /// Pages of the owner that hold the leaf's rows, in order; empty where the leaf is only reserved,
  /// or its rows were lost.
  std::vector<std::int32_t> pages;
};

struct Sequence {
  SequenceId id = 0;
  std::uint32_t epoch = 0;  // +1 on admission, on truncation, and where rows were lost
  /// The epoch before the first loss of rows since the last truncation; 0: none was lost.
  std::uint32_t lost_since = 0;
  std::int32_t home = 0;
  std::int64_t tag = 0;  // the caller's own name for it: the request's index in a replay
  std::int64_t prompt_tokens = 0;
  std::int64_t present_tokens = 0;  // of the prompt, at admission: in pages that it shares
  std::int64_t limit_tokens = 0;    // prompt + max_new_tokens
  std::int64_t length = 0;          // committed rows
  std::vector<Leaf> leaves;         // all leaves up to the limit
};

/// Ok for the epoch that the sequence has. An earlier one is kWorkerLost where rows were lost
/// since, and else, as any other, kStaleEpoch.
[[nodiscard]] Status check_epoch(const Sequence& sequence, std::uint32_t epoch);

// Operations on the table, in the order in which the sequencer decided them.

struct AdmitOp {
  Sequence sequence;  // length = prompt_tokens, pages for the prompt's rows
};
/// `pages` join leaf `leaf`, and `owner` becomes its owner. The owner may change only while the
/// leaf has no pages. Where its rows were lost, `pages` are for all of them, which come from
/// outside again.
struct ExtendOp {
  SequenceId id = 0;
  std::int32_t leaf = 0;
  std::int32_t owner = 0;
  std::vector<std::int32_t> pages;
};
/// `accepted` tokens of the last step become part of the sequence.
struct CommitOp {
  SequenceId id = 0;
  std::int32_t accepted = 0;
};
/// Drops the rows from `length` on and frees their pages. `copied_page`, unless it is -1, takes the
/// place of the last page that is left, which others go on to use: see Order::copies.
struct TruncateOp {
  SequenceId id = 0;
  std::uint32_t epoch = 0;
  std::int64_t length = 0;
  std::int32_t copied_page = -1;
};
struct FreeOp {
  SequenceId id = 0;
};
/// Leaves first_leaf, first_leaf + 1, ... now lie in `pages` of worker `owner`, each in as many as
/// it has: all pages of the first, then of the next. The epoch stays.
struct MoveOp {
  SequenceId id = 0;
  std::int32_t first_leaf = 0;
  std::int32_t owner = 0;
  std::vector<std::int32_t> pages;
};
/// The sequence may grow to `limit_tokens`, which is not less than before. `owners`: of the leaves
/// that this adds, which have no pages yet.
struct RaiseLimitOp {
  SequenceId id = 0;
  std::int64_t limit_tokens = 0;
  std::vector<std::int32_t> owners;
};
/// Another worker is the sequence's home from now on.
struct HomeOp {
  SequenceId id = 0;
  std::int32_t home = 0;
};
/// These leaves, none perhaps, have no owner and no pages any more. The epoch is a new one where
/// rows were lost, committed ones or an open step's, and else stays.
struct LoseOp {
  SequenceId id = 0;
  std::uint32_t epoch = 0;
  std::vector<std::int32_t> leaves;
};
using TableOp = std::variant<AdmitOp, ExtendOp, CommitOp, TruncateOp, FreeOp, MoveOp, RaiseLimitOp,
                             HomeOp, LoseOp>;

class SequenceTable {
 public:
  /// `leaf_tokens`: a power-of-two number of pages; throws kInvalidArgument.
  explicit SequenceTable(int leaf_tokens);

  [[nodiscard]] int leaf_tokens() const noexcept { return leaf_tokens_; }
  [[nodiscard]] std::size_t size() const noexcept { return sequences_.size(); }
  [[nodiscard]] bool contains(SequenceId id) const { return sequences_.contains(id); }
  /// Throws kNotFound.
  [[nodiscard]] const Sequence& at(SequenceId id) const;
  /// All sequences, by id.
  [[nodiscard]] std::vector<Sequence> all() const;
  /// They are this table's now, as all() of an equal one gave them.
  void restore(std::span<const Sequence> all);
  /// Whether an operation gives pages to a leaf whose rows were lost. Throws as apply().
  [[nodiscard]] bool gives_rows_back(const TableOp& op) const;

  /// Throws kNotFound for an unknown sequence, kStaleEpoch for a truncation or a loss of rows that
  /// is not newer than the sequence, kInvalidArgument for a change that does not fit it; nothing is
  /// changed then. The table knows neither the number of workers nor of their pages: see
  /// build_routing.
  void apply(const TableOp& op);

 private:
  [[nodiscard]] Sequence& find(SequenceId id);
  [[nodiscard]] std::size_t leaf_pages(std::size_t leaf, std::int64_t length) const;
  [[nodiscard]] std::size_t lost_pages(const Sequence& s, std::int32_t leaf) const;
  void apply_op(const AdmitOp& op);
  void apply_op(const ExtendOp& op);
  void apply_op(const CommitOp& op);
  void apply_op(const TruncateOp& op);
  void apply_op(const FreeOp& op);
  void apply_op(const MoveOp& op);
  void apply_op(const RaiseLimitOp& op);
  void apply_op(const HomeOp& op);
  void apply_op(const LoseOp& op);

  int leaf_tokens_;
  std::unordered_map<SequenceId, Sequence> sequences_;
};

}  // namespace tributary
