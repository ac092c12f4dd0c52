// The attention kernels' reads from a launch for one unit of work: its task, its rows, and how much
// of the leaf each row sees.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/interface/visible_rows.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/ptx.h"

#if defined(__CUDACC__)
#define TRIBUTARY_UNROLL _Pragma("unroll")
#define TRIBUTARY_PRAGMA(text) _Pragma(#text)
#define TRIBUTARY_UNROLL_BY(times) TRIBUTARY_PRAGMA(unroll times)
#else
#define TRIBUTARY_UNROLL
#define TRIBUTARY_UNROLL_BY(times)
#endif

namespace tributary::cuda {

inline constexpr float kNothing = -__builtin_huge_valf();  // the largest score of no row

struct Unit {
  LeafTask task;
  int first_row;  // row = token * heads + head
  int rows;       // at least 1
};

TRIBUTARY_DEVICE Unit read_unit(const AttendLaunch& launch, int index) {
  const WorkUnit work = launch.units[index];
  Unit unit{launch.tasks[work.task], work.first_row, 0};
  const int left = unit.task.tokens * launch.heads - work.first_row;
  unit.rows = left < launch.unit_rows ? left : launch.unit_rows;
  return unit;
}

/// The page `index` pages into the leaf, in the layer of the task.
TRIBUTARY_DEVICE const std::byte* page_of(const AttendLaunch& launch, std::int64_t layer_pages,
                                          std::int32_t page, std::size_t row_bytes) {
  return launch.cache + static_cast<std::size_t>(layer_pages + page) * kPageTokens * row_bytes;
}

/// Row `row` of a leaf, whose pages `table` names.
TRIBUTARY_DEVICE const std::byte* row_of(const AttendLaunch& launch, std::int64_t layer_pages,
                                         const std::int32_t* table, std::uint32_t row,
                                         std::size_t row_bytes) {
  return page_of(launch, layer_pages, table[row / kPageTokens], row_bytes) +
         row % kPageTokens * row_bytes;
}

/// The part of a token's list that lies in a leaf.
struct SelectedPart {
  const std::int32_t* positions;
  int count;
};

/// Finds the part of a task of one token, by a search for either end. They take their steps
/// together, so that their loads wait together.
TRIBUTARY_DEVICE SelectedPart selected_part(const AttendLaunch& launch, const LeafTask& task) {
  const auto most = static_cast<std::uint32_t>(launch.selected.most);
  const auto* list = reinterpret_cast<const std::int32_t*>(
      reinterpret_cast<const std::byte*>(launch.selected.data) +
      static_cast<std::size_t>(task.query) * launch.selected.stride_bytes);
  // As unsigned numbers a list is in order to its end: -1 is the largest.
  const auto begin = static_cast<std::uint32_t>(task.leaf_begin);
  const std::uint32_t bounds[2] = {begin,
                                   begin + static_cast<std::uint32_t>(visible_rows(task, 0))};
  std::uint32_t before[2] = {0, 0};  // entries below the bound
  std::uint32_t step = 1;
  while (step <= most / 2) step *= 2;
  for (; step > 0; step /= 2) {
    TRIBUTARY_UNROLL
    for (int end = 0; end < 2; ++end) {
      const std::uint32_t next = before[end] + step;
      if (next <= most && static_cast<std::uint32_t>(list[next - 1]) < bounds[end]) {
        before[end] = next;
      }
    }
  }
  return {list + before[0], static_cast<int>(before[1] - before[0])};
}

/// Pages before the first one of the task's layer.
TRIBUTARY_DEVICE std::int64_t layer_pages(const AttendLaunch& launch, const LeafTask& task) {
  return static_cast<std::int64_t>(launch.item_layer[task.item]) * launch.layout.pages;
}

TRIBUTARY_DEVICE std::size_t record_floats(const AttendLaunch& launch) {
  return static_cast<std::size_t>(launch.heads) *
         (static_cast<std::size_t>(launch.layout.kv_lora_rank) + 1);
}

/// The record of an index, in states or in scratch.
TRIBUTARY_DEVICE float* record_of(float* states, float* scratch, std::int64_t index,
                                  std::size_t floats) {
  return index < kScratchRecord
             ? states + static_cast<std::size_t>(index) * floats
             : scratch + static_cast<std::size_t>(index - kScratchRecord) * floats;
}

/// The place where a row's state goes.
struct RowState {
  float* o;
  float* lse;
};
TRIBUTARY_DEVICE RowState row_state(const AttendLaunch& launch, const LeafTask& task, int row) {
  const int token = row / launch.heads;
  const int head = row - token * launch.heads;
  float* record =
      record_of(launch.states, launch.scratch, task.state + token, record_floats(launch));
  const auto width = static_cast<std::size_t>(launch.layout.kv_lora_rank);
  return {record + static_cast<std::size_t>(head) * width,
          record + static_cast<std::size_t>(launch.heads) * width + head};
}

/// The address of a row's query.
TRIBUTARY_DEVICE const std::byte* row_query(const AttendLaunch& launch, const LeafTask& task,
                                            int row, std::size_t query_bytes) {
  const int token = row / launch.heads;
  const int head = row - token * launch.heads;
  return launch.queries + static_cast<std::size_t>(task.query + token) * launch.query_stride_bytes +
         static_cast<std::size_t>(head) * query_bytes;
}

/// Scores in units of log2: exp(scale * s) = 2^(scale * log2(e) * s).
inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.69314718055994530942F;

/// The value that is subtracted from scores before the exponential: their maximum, or 0 if there is
/// none yet (-inf minus itself is NaN).
TRIBUTARY_DEVICE float reference_score(float maximum) {
  return maximum == kNothing ? 0.0F : maximum;
}

/// The natural logarithm of the sum of exponentials, from the maximum in units of log2 and the sum
/// relative to it.
TRIBUTARY_DEVICE float log_sum(float maximum, float sum) {
  if (sum == 0) return kNothing;
  return ptx::multiply(ptx::add(maximum, ptx::log2(sum)), kLn2);
}

}  // namespace tributary::cuda
