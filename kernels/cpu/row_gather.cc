#include "kernels/cpu/row_gather.h"

#include <algorithm>
#include <cstring>

#include "core/base/ceil_div.h"
#include "core/model/fp8_ds_mla.h"

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

RowCopy::RowCopy(const RowLayout& stored, WidenCodes widen_codes)
    : stored_(stored),
      widen_codes_(widen_codes),
      stored_bytes_(stored.bytes()),
      copied_bytes_(plain_elements(stored.format) ? stored_bytes_ : stored.values() * sizeof(bf16)),
      scales_(ceil_div(stored.values(), kCodesPerScale), stored.format.scale) {}

void RowCopy::copy(const std::byte* from, std::byte* to) const {
  switch (stored_.format.id) {
    case RowFormat::kFp8.id:
      widen_codes_(reinterpret_cast<const std::uint8_t*>(from),
                   reinterpret_cast<const std::byte*>(scales_.data()), stored_.values(),
                   reinterpret_cast<bf16*>(to));
      return;
    case RowFormat::kFp8DsMla.id: {
      static_assert(fp8_ds_mla::kTile == kCodesPerScale);
      const auto rank = static_cast<std::size_t>(stored_.kv_lora_rank);
      const auto rope = static_cast<std::size_t>(stored_.qk_rope_head_dim);
      const fp8_ds_mla::Parts parts(rank, rope);
      widen_codes_(reinterpret_cast<const std::uint8_t*>(from), from + parts.scales, rank,
                   reinterpret_cast<bf16*>(to));
      std::memcpy(to + rank * sizeof(bf16), from + parts.rope, rope * sizeof(bf16));
      return;
    }
    default:
      std::memcpy(to, from, stored_bytes_);
  }
}

RowGather::RowGather(const GatheredRows& rows, const GatheredRows& next, std::size_t block_rows,
                     const RowCopy& copy, std::byte* to, PrefetchInto prefetch)
    : rows_(rows),
      next_(next),
      block_rows_(block_rows),
      copy_(copy),
      to_(to),
      prefetch_(prefetch) {}

void RowGather::begin_block(std::size_t begin, std::size_t steps) {
  copy_until(std::min(begin + block_rows_, rows_.count));
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
  if (rows_.positions == nullptr) return lines_of(requested_++);
  if (requested_ % kTogether == 0) request_ends();
  return together_[requested_++ % kTogether];
}

RowLines RowGather::lines_of(std::size_t index) const {
  const std::size_t first_of_next = ceil_div(rows_.count, block_rows_) * block_rows_;
  const std::byte* row = nullptr;
  if (index < rows_.count) {
    row = rows_.row(index);
  } else if (index >= first_of_next && index - first_of_next < next_.count) {
    row = next_.row(index - first_of_next);
  } else {
    return {};
  }
  const std::size_t past = reinterpret_cast<std::uintptr_t>(row) % kLineBytes;
  return {row - past, ceil_div(past + copy_.stored_bytes(), kLineBytes)};
}

void RowGather::request_ends() {
  for (std::size_t i = 0; i < kTogether; ++i) {
    const RowLines lines = lines_of(requested_ + i);
    together_[i] = lines;
    if (lines.count == 0) continue;
    request_line(lines.data, prefetch_);
    request_line(lines.data + (lines.count - 1) * kLineBytes, prefetch_);
  }
}

void RowGather::request_until(std::size_t end) {
  while (requested_ < end) request(next_lines());
}

void RowGather::copy_until(std::size_t end) {
  for (; copied_ < end; ++copied_) {
    request_until(copied_ + kAhead);
    if (copied_ >= rows_.count) continue;
    copy_.copy(rows_.row(copied_), to_ + copied_ % (2 * block_rows_) * copy_.copied_bytes());
  }
}

void RowGather::request(const RowLines& lines) const {
  const std::byte* end = lines.data + lines.count * kLineBytes;
  for (const std::byte* line = lines.data; line < end; line += kLineBytes) {
    request_line(line, prefetch_);
  }
}

}  // namespace tributary::cpu
