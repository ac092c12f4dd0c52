// The rows of a unit of work that attends to selected rows, or whose rows the kernels cannot read
// as they are stored, copied into pages of their own: the kernels read these as they read a leaf's.
// The copy runs a block ahead, a few rows at a time between the pieces of a block's arithmetic, and
// behind requests that run further ahead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/limits.h"
#include "core/model/row_format.h"
#include "kernels/cpu/processor_choice.h"

namespace tributary::cpu {

/// Rows of a leaf: the first ones, or some by their positions.
struct GatheredRows {
  std::size_t count = 0;
  const std::int32_t* positions = nullptr;     // ascending; null: the first `count` rows
  std::int64_t leaf_begin = 0;                 // position of the leaf's first row
  const std::byte* layer = nullptr;            // page p at layer + p * page_bytes
  std::size_t page_bytes = 0, row_stride = 0;  // from one to the next
  const std::int32_t* pages = nullptr;         // of the leaf

  [[nodiscard]] const std::byte* row(std::size_t index) const noexcept {
    const auto row =
        positions == nullptr ? index : static_cast<std::size_t>(positions[index] - leaf_begin);
    return layer + static_cast<std::size_t>(pages[row / kPageTokens]) * page_bytes +
           row % kPageTokens * row_stride;
  }
};

/// The cache lines of a row.
struct RowLines {
  const std::byte* data = nullptr;
  std::size_t count = 0;
};

/// e4m3 codes of a row that have a scale together.
inline constexpr std::size_t kCodesPerScale = 128;
/// out[i] = codes[i] x scales[i / kCodesPerScale], rounded to bf16. Scales are fp32, aligned or
/// not.
using WidenCodes = void (*)(const std::uint8_t* codes, const std::byte* scales, std::size_t count,
                            bf16* out);

/// How rows are copied: as they are if they are plain, or else their values as bf16.
class RowCopy {
 public:
  /// Of what check_row_layout() accepts.
  RowCopy(const RowLayout& stored, WidenCodes widen_codes);

  [[nodiscard]] std::size_t stored_bytes() const noexcept { return stored_bytes_; }
  [[nodiscard]] std::size_t copied_bytes() const noexcept { return copied_bytes_; }
  void copy(const std::byte* from, std::byte* to) const;

 private:
  RowLayout stored_;
  WidenCodes widen_codes_;
  std::size_t stored_bytes_, copied_bytes_;
  std::vector<float> scales_;  // of `fp8`: the one, as often as a row of codes has some
};

class RowGather {
 public:
  /// Memory for copies: this block and the next one.
  [[nodiscard]] static std::size_t bytes(std::size_t block_rows, const RowCopy& copy) {
    return 2 * block_rows * copy.copied_bytes();
  }

  /// `block_rows`: of a block of the kernel, whole pages. `to`: bytes(), of which page p of the
  /// copied rows is page p % (2 * block_rows / kPageTokens). `next`: the rows that this thread
  /// will probably read afterwards.
  /// `copy` outlives this.
  RowGather(const GatheredRows& rows, const GatheredRows& next, std::size_t block_rows,
            const RowCopy& copy, std::byte* to, PrefetchInto prefetch);

  /// Completes the block of rows [begin, begin + block_rows). While it is computed, advance() will
  /// be called for about `steps` steps in all.
  void begin_block(std::size_t begin, std::size_t steps);
  /// Copies as much of the next block as `steps` steps are of all. Returns lines that the caller is
  /// to request in the meantime, one after the other: requests that come all at once hold up its
  /// own.
  RowLines advance(std::size_t steps) {
    due_ += steps * rows_per_1024_steps_;
    return due_ < 1024 ? RowLines{} : take_due();
  }
  void request(const RowLines& lines) const;

 private:
  // Rows whose ends are requested together, before their other lines. A request holds up its thread
  // while its page is translated, unlike one of a page that is; translations that are asked for
  // together go on together. 64 heads over 604 MB of rows, of attention in place: 1.28 x one row at
  // a time, 1.21 x with 8 together, 1.20 x with 16 and with 32 (Zen 5).
  static constexpr std::size_t kTogether = 16;

  RowLines take_due();
  /// The lines of the next row to request; of rows in no order the ends were requested before.
  RowLines next_lines();
  /// Of row `index`, or of one of `next`; nothing between and behind them.
  [[nodiscard]] RowLines lines_of(std::size_t index) const;
  void request_ends();
  void request_until(std::size_t end);
  void copy_until(std::size_t end);

  GatheredRows rows_, next_;
  std::size_t block_rows_;
  const RowCopy& copy_;
  std::byte* to_;
  PrefetchInto prefetch_;
  std::array<RowLines, kTogether> together_;
  // Indices of rows; those of `next_` follow the last block of `rows_`.
  std::size_t copied_ = 0, requested_ = 0, goal_ = 0;
  std::size_t rows_per_1024_steps_ = 0, due_ = 0;  // 1024ths of a row
};

}  // namespace tributary::cpu
