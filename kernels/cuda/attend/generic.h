// Attention over leaves in plain fp32, for any widths, rows of any format and queries of bf16 or
// fp32: for models other than DeepSeek's, and for verification. One block computes the rows of a
// unit one by one, and walks over the leaf in blocks of 64 latent rows for each.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

/// Elements are bf16 or float; those of rows may be Codes.
template <typename RowElement, typename QueryElement, bool kSelected = false>
class Generic {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kBlockRows = kPageTokens;             // a block lies in one page
  static constexpr std::uint32_t kWeights = kBlockRows * 4;  // after as many scores
  static constexpr std::uint32_t kSharedBytes = 2 * kBlockRows * 4;

  TRIBUTARY_DEVICE explicit Generic(const AttendLaunch& launch)
      : launch_(launch),
        shared_(ptx::shared_memory()),
        thread_(static_cast<int>(ptx::thread())),
        latent_dim_(launch.layout.kv_lora_rank + launch.layout.qk_rope_head_dim) {}

  TRIBUTARY_DEVICE void run() {
    const int last = launch_.part_begin[ptx::block() + 1];
    for (int index = launch_.part_begin[ptx::block()]; index < last; ++index) {
      const Unit unit = read_unit(launch_, index);
      SelectedPart part{};
      if constexpr (kSelected) part = selected_part(launch_, unit.task);
      for (int row = 0; row < unit.rows; ++row) attend(unit.task, part, unit.first_row + row);
    }
  }

 private:
  /// Value c of a row, or of a query.
  template <typename T>
  [[nodiscard]] TRIBUTARY_DEVICE float load(const std::byte* row, int c) const {
    if constexpr (std::is_same_v<T, Codes>) {
      return code_value(launch_.layout.row_format, launch_.layout.kv_lora_rank, row, c);
    } else if constexpr (std::is_same_v<T, bf16>) {
      return to_float(reinterpret_cast<const bf16*>(row)[c]);
    } else {
      return reinterpret_cast<const float*>(row)[c];
    }
  }
  [[nodiscard]] TRIBUTARY_DEVICE std::size_t row_bytes() const {
    if constexpr (std::is_same_v<RowElement, Codes>) {
      return code_row_bytes(launch_.layout.row_format, launch_.layout.kv_lora_rank,
                            launch_.layout.qk_rope_head_dim);
    } else {
      return static_cast<std::size_t>(latent_dim_) * sizeof(RowElement);
    }
  }

  TRIBUTARY_DEVICE std::uint32_t score_address(int row) const {
    return shared_ + static_cast<std::uint32_t>(row) * 4;
  }

  // A block of rows, and its row j: of a page, or selected ones.
  struct SelectedBlock {
    const std::int32_t* positions;
    std::int32_t leaf_begin;
    const std::int32_t* pages;
    std::int64_t layer_pages;
  };
  TRIBUTARY_DEVICE const std::byte* row(const std::byte* rows, int j) const {
    return rows + static_cast<std::size_t>(j) * row_bytes();
  }
  TRIBUTARY_DEVICE const std::byte* row(const SelectedBlock& rows, int j) const {
    return row_of(launch_, rows.layer_pages, rows.pages,
                  static_cast<std::uint32_t>(rows.positions[j] - rows.leaf_begin), row_bytes());
  }
  TRIBUTARY_DEVICE auto block_rows(const LeafTask& task, [[maybe_unused]] const SelectedPart& part,
                                   std::int64_t layer, int first) const {
    if constexpr (kSelected) {
      return SelectedBlock{part.positions + first, static_cast<std::int32_t>(task.leaf_begin),
                           launch_.block_table + task.first_page, layer};
    } else {
      return page_of(launch_, layer, launch_.block_table[task.first_page + first / kPageTokens],
                     row_bytes());
    }
  }

  TRIBUTARY_DEVICE void attend(const LeafTask& task, const SelectedPart& part, int row) {
    const RowState state = row_state(launch_, task, row);
    const std::byte* query =
        row_query(launch_, task, row, static_cast<std::size_t>(latent_dim_) * sizeof(QueryElement));
    const std::int64_t layer = layer_pages(launch_, task);
    const int seen = kSelected ? part.count : visible_rows(task, row / launch_.heads);
    float maximum = kNothing;
    float sum = 0;
    for (int first = 0; first < seen; first += kBlockRows) {
      const int count = seen - first < kBlockRows ? seen - first : kBlockRows;
      const auto rows = block_rows(task, part, layer, first);
      ptx::sync_block();  // all are done with the last block's scores
      score(query, rows, count);
      ptx::sync_block();
      float raised = maximum;
      for (int j = 0; j < count; ++j) {
        raised = ptx::larger(raised, ptx::load_shared(score_address(j)));
      }
      const float reference = reference_score(raised);
      if (thread_ < count) {
        const float score = ptx::load_shared(score_address(thread_));
        ptx::store_shared(score_address(thread_) + kWeights,
                          ptx::exp2_fast(ptx::subtract(score, reference)));
      }
      ptx::sync_block();
      const float keep = ptx::exp2_fast(ptx::subtract(maximum, reference));
      maximum = raised;
      float block_sum = 0;
      for (int j = 0; j < count; ++j) {
        block_sum = ptx::add(block_sum, ptx::load_shared(score_address(j) + kWeights));
      }
      sum = ptx::multiply_add(sum, keep, block_sum);
      accumulate(rows, count, first == 0, keep, state.o);
    }
    const float share = sum == 0 ? 0.0F : ptx::divide(1.0F, sum);
    for (int c = thread_; c < launch_.layout.kv_lora_rank; c += kThreads) {
      state.o[c] = seen == 0 ? 0.0F : ptx::multiply(state.o[c], share);
    }
    if (thread_ == 0) *state.lse = log_sum(maximum, sum);
  }

  // Scores one latent row per warp: lanes take every 32nd column, then add up.
  template <typename Rows>
  TRIBUTARY_DEVICE void score(const std::byte* query, Rows rows, int count) const {
    const float scale = ptx::multiply(launch_.softmax_scale, kLog2E);
    const int lane = thread_ % 32;
    for (int j = thread_ / 32; j < count; j += kThreads / 32) {
      const std::byte* key = row(rows, j);
      float sum = 0;
      for (int c = lane; c < latent_dim_; c += 32) {
        sum = ptx::multiply_add(load<QueryElement>(query, c), load<RowElement>(key, c), sum);
      }
      for (unsigned bits = 16; bits > 0; bits /= 2) {
        sum = ptx::add(sum, ptx::shuffle_xor(sum, bits));
      }
      if (lane == 0) ptx::store_shared(score_address(j), ptx::multiply(sum, scale));
    }
  }

  // Every thread keeps its columns in their final place, so that no width is too large.
  template <typename Rows>
  TRIBUTARY_DEVICE void accumulate(Rows rows, int count, bool first, float keep, float* o) const {
    for (int c = thread_; c < launch_.layout.kv_lora_rank; c += kThreads) {
      float sum = first ? 0.0F : ptx::multiply(o[c], keep);
      for (int j = 0; j < count; ++j) {
        sum = ptx::multiply_add(ptx::load_shared(score_address(j) + kWeights),
                                load<RowElement>(row(rows, j), c), sum);
      }
      o[c] = sum;
    }
  }

  const AttendLaunch& launch_;
  std::uint32_t shared_;
  int thread_;
  int latent_dim_;
};

}  // namespace tributary::cuda
