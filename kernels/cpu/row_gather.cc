#include "kernels/cpu/row_gather.h"

#include <algorithm>
#include <cstring>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary::cpu {
namespace {

// Rows that are requested before they are copied.
constexpr std::size_t kAhead = 16;
constexpr std::size_t kLineBytes = 64;

}  // namespace

const std::byte* GatheredRows::row(std::size_t index) const noexcept {
  const auto row = static_cast<std::size_t>(positions[index] - leaf_begin);
  return layer + static_cast<std::size_t>(pages[row / kPageTokens]) * page_bytes +
         row % kPageTokens * row_stride;
}

RowGather::RowGather(const GatheredRows& rows, const GatheredRows& next, std::size_t block_rows,
                     std::size_t row_bytes, std::byte* to, PrefetchInto prefetch)
    : rows_(rows),
      next_(next),
      block_rows_(block_rows),
      row_bytes_(row_bytes),
      to_(to),
      prefetch_(prefetch) {}

void RowGather::begin_block(std::size_t begin, std::size_t steps) {
  copy_until(std::min(begin + block_rows_, rows_.positions.size()));
  copied_ = begin + block_rows_;
  goal_ = copied_ + block_rows_;
  rows_per_1024_steps_ = ceil_div(block_rows_ * 1024, steps);
  due_ = 0;
}

void RowGather::take_due() {
  copy_until(std::min(copied_ + due_ / 1024, goal_));
  due_ %= 1024;
}

void RowGather::copy_until(std::size_t end) {
  for (; copied_ < end; ++copied_) {
    for (; requested_ <= copied_ + kAhead; ++requested_) request(requested_);
    if (copied_ >= rows_.positions.size()) continue;
    std::memcpy(to_ + copied_ % (2 * block_rows_) * row_bytes_, rows_.row(copied_), row_bytes_);
  }
}

void RowGather::request(std::size_t index) const {
  const GatheredRows* rows = &rows_;
  const std::size_t count = rows_.positions.size();
  if (index >= count) {
    rows = &next_;
    index -= std::min(index, ceil_div(count, block_rows_) * block_rows_);
    if (index >= next_.positions.size()) return;
  }
  const std::byte* row = rows->row(index);
  // Rows need not begin with a cache line: the last byte may lie in one more.
  const std::byte* last = row + row_bytes_ - 1;
  if (prefetch_ == PrefetchInto::kFirstLevel) {
    for (const std::byte* line = row; line < last; line += kLineBytes) __builtin_prefetch(line);
    __builtin_prefetch(last);
  } else {
    for (const std::byte* line = row; line < last; line += kLineBytes) {
      __builtin_prefetch(line, 0, 2);
    }
    __builtin_prefetch(last, 0, 2);
  }
}

}  // namespace tributary::cpu
