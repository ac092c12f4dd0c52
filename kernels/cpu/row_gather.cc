#include "kernels/cpu/row_gather.h"

#include <algorithm>
#include <cstring>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"

namespace tributary::cpu {
namespace {

// Rows that are requested before they are copied. With 3 and 16 the same within noise, with 2 few
// heads are slower.
constexpr std::size_t kAhead = 8;
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

RowLines RowGather::take_due() {
  const std::size_t end = std::min(copied_ + due_ / 1024, goal_);
  due_ %= 1024;
  request_until(end + kAhead - 1);
  copy_until(end);
  return requested_ < end + kAhead ? lines_of(requested_++) : RowLines{};
}

void RowGather::request_until(std::size_t end) {
  for (; requested_ < end; ++requested_) request(lines_of(requested_));
}

void RowGather::copy_until(std::size_t end) {
  for (; copied_ < end; ++copied_) {
    request_until(copied_ + kAhead);
    if (copied_ >= rows_.positions.size()) continue;
    std::memcpy(to_ + copied_ % (2 * block_rows_) * row_bytes_, rows_.row(copied_), row_bytes_);
  }
}

RowLines RowGather::lines_of(std::size_t index) const {
  const GatheredRows* rows = &rows_;
  const std::size_t count = rows_.positions.size();
  if (index >= count) {
    rows = &next_;
    const std::size_t first = ceil_div(count, block_rows_) * block_rows_;
    if (index < first || index - first >= next_.positions.size()) return {};
    index -= first;
  }
  const std::byte* row = rows->row(index);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(row) % kLineBytes;
  return {row - past, ceil_div(past + row_bytes_, kLineBytes)};
}

void RowGather::request(const RowLines& lines) const {
  const std::byte* end = lines.data + lines.count * kLineBytes;
  if (prefetch_ == PrefetchInto::kFirstLevel) {
    for (const std::byte* line = lines.data; line < end; line += kLineBytes) {
      __builtin_prefetch(line);
    }
  } else {
    for (const std::byte* line = lines.data; line < end; line += kLineBytes) {
      __builtin_prefetch(line, 0, 2);
    }
  }
}

}  // namespace tributary::cpu
