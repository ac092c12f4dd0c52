// Decode attention over a paged cache in its owner's memory, in the form in which engines call
// their kernels: block tables, lengths, a tensor of outputs. A call is cut into leaves of the size
// that pools use by default, and merged in their tree: a tier of those rows gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "core/plan/merge_tree.h"

namespace tributary::python {

/// B sequences of S new tokens each, H query heads, K KV heads. Query heads [k H / K, (k + 1) H /
/// K) attend to the rows of KV head k. D is head_dim, V head_dim_v: a row's first V values are
/// values.
struct PagedBatch {
  int sequences = 0, tokens = 0, heads = 0, kv_heads = 0;
  int head_dim = 0, head_dim_v = 0;
  DType dtype = DType::kBF16;  // kBF16 or kF32, of queries and out
  RowFormat format = RowFormat::kBF16;
  const std::byte* queries = nullptr;  // [B * S][H][D], tokens `query_stride_bytes` apart
  std::size_t query_stride_bytes = 0;
  const std::byte* rows = nullptr;  // [pages][64][K][row], pages `page_bytes` apart
  std::size_t page_bytes = 0;
  int pages = 0;
  const std::int32_t* block_table = nullptr;  // [B][columns], `table_stride` elements apart
  std::int64_t columns = 0, table_stride = 0;
  const std::int32_t* lengths = nullptr;  // [B]: rows, those of the new tokens included
  float softmax_scale = 0;
  bool causal = false;       // token s sees all rows but the last S - 1 - s
  std::byte* out = nullptr;  // [B][S][H][V]
  float* lse = nullptr;      // [B][H][S], natural logarithm; +inf where a token sees no row

  [[nodiscard]] RowLayout row() const noexcept {
    return {format, head_dim_v, head_dim - head_dim_v};
  }
};

/// Some rows of a cache for each of B * S tokens, by their slots: slot i is row i % `block_rows` of
/// block i / `block_rows`.
struct SelectedSlots {
  const char* name = nullptr;       // of the argument with the lists, for messages
  const std::byte* rows = nullptr;  // [blocks][block_rows][row], blocks `block_bytes` apart
  std::size_t block_bytes = 0;      // no gaps unless blocks are pages
  std::int64_t blocks = 0, block_rows = 0;
  const std::int32_t* lists = nullptr;    // [B * S][most], in any order; -1 is none
  const std::int32_t* lengths = nullptr;  // [B]: entries of a list that count; null: all
  std::int64_t most = 0;

  [[nodiscard]] std::int64_t slots() const noexcept { return blocks * block_rows; }
};

/// B sequences of S tokens, H heads over one KV head; D and V as above.
struct SelectedBatch {
  int sequences = 0, tokens = 0, heads = 0;
  int head_dim = 0, head_dim_v = 0;
  DType dtype = DType::kBF16;
  RowFormat format = RowFormat::kBF16;
  const std::byte* queries = nullptr;
  std::size_t query_stride_bytes = 0;
  std::span<const SelectedSlots> caches;  // one, or two whose rows are attended to together
  float softmax_scale = 0;
  const float* sink = nullptr;  // [H]: out times 1 / (1 + exp(sink - lse)); null: none
  std::byte* out = nullptr;     // [B][S][H][V]
  float* lse = nullptr;         // [B][H][S], as above

  [[nodiscard]] RowLayout row() const noexcept {
    return {format, head_dim_v, head_dim - head_dim_v};
  }
};

/// Two states for each of `tokens` x `heads`, and the place for their merge.
struct StatePairs {
  std::int64_t tokens = 0;
  int heads = 0, width = 0;
  DType dtype = DType::kF32;                                  // kF32 or kBF16, of v
  const std::byte *v_left = nullptr, *v_right = nullptr;      // [tokens][heads][width]
  std::size_t left_stride_bytes = 0, right_stride_bytes = 0;  // between tokens of v
  const float *lse_left = nullptr, *lse_right = nullptr;      // [tokens][heads]
  float log_unit = 1;  // the unit of lse in natural logarithms: 1, or ln 2 for base 2
  std::byte* v = nullptr;
  float* lse = nullptr;
};

/// One caller at a time. Scratch memory is kept between calls: 64 MiB at most, or the states of one
/// token's leaves if those are larger.
class PagedAttention {
 public:
  /// Throws kInvalidArgument for a thread count out of range (CpuOptions).
  explicit PagedAttention(int threads);

  /// Throws kInvalidArgument, before anything is written, for a length or an entry of the block
  /// table out of bounds; memory behind pointers cannot be checked.
  void attend(const PagedBatch& batch);
  /// The same for an entry of a list that is no slot.
  void attend(const SelectedBatch& batch);
  void merge(const StatePairs& pairs);

  [[nodiscard]] const Backend& backend() const noexcept { return *backend_; }

 private:
  struct Chunk;
  [[nodiscard]] float* records(std::size_t count, const StateShape& shape);
  void attend_heads(const PagedBatch& batch, const Cache& cache, int kv_head);
  void run(const PagedBatch& batch, const Cache& cache, const Chunk& chunk);
  void add(const PagedBatch& batch, Chunk& chunk, std::int64_t token, std::int32_t tokens);
  /// States of tokens [first, first + count) over the rows that they select of a cache.
  void attend_slots(const SelectedBatch& batch, const SelectedSlots& slots, std::int64_t first,
                    std::int64_t count, float* states);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<tributary::Buffer> scratch_;
  std::vector<LeafTask> tasks_;
  std::vector<NodeState> nodes_;
  std::vector<MergeOp> ops_;
  MergeSchedule merges_;
  std::vector<std::int32_t> lists_, pages_;
};

}  // namespace tributary::python
