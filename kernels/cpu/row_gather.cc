#include "kernels/cpu/row_gather.h"

#include <algorithm>
#include <cstring>

#include "core/base/ceil_div.h"

namespace tributary::cpu {
namespace {

// Rows that are requested before they are copied. With 3 and 16 the same within noise, with 2 few
// heads are slower.
constexpr std::size_t kAhead = 8;
constexpr std::size_t kLineBytes = 64;

void request_line(const std::byte* line, PrefetchInto into) {
  asm volatile("");  // GCC 12 removes calls of functions that do nothing but prefetch
  if (into == PrefetchInto::kFirstLevel) {
    __builtin_prefetch(line);
  } else {
    __builtin_prefetch(line, 0, 2);
  }
}

}  // namespace

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
  return requested_ < end + kAhead ? next_lines() : RowLines{};
}

RowLines RowGather::next_lines() {
  if (requested_ % kTogether == 0) request_ends();
  return together_[requested_++ % kTogether];
}

void RowGather::request_ends() {
  const std::size_t count = rows_.positions.size();
  const std::size_t first_of_next = ceil_div(count, block_rows_) * block_rows_;
  for (std::size_t i = 0; i < kTogether; ++i) {
    const std::size_t index = requested_ + i;
    together_[i] = {};
    const std::byte* row = nullptr;
    if (index < count) {
      row = rows_.row(index);
    } else if (index >= first_of_next && index - first_of_next < next_.positions.size()) {
      row = next_.row(index - first_of_next);
    }
    if (row == nullptr) continue;
    const std::size_t past = reinterpret_cast<std::uintptr_t>(row) % kLineBytes;
    together_[i] = {row - past, ceil_div(past + row_bytes_, kLineBytes)};
    request_line(row, prefetch_);
    request_line(row + row_bytes_ - 1, prefetch_);
  }
}

void RowGather::request_until(std::size_t end) {
  while (requested_ < end) request(next_lines());
}

void RowGather::copy_until(std::size_t end) {
  for (; copied_ < end; ++copied_) {
    request_until(copied_ + kAhead);
    if (copied_ >= rows_.positions.size()) continue;
    std::memcpy(to_ + copied_ % (2 * block_rows_) * row_bytes_, rows_.row(copied_), row_bytes_);
  }
}

void RowGather::request(const RowLines& lines) const {
  const std::byte* end = lines.data + lines.count * kLineBytes;
  for (const std::byte* line = lines.data; line < end; line += kLineBytes) {
    request_line(line, prefetch_);
  }
}

}  // namespace tributary::cpu
