// The checks of a backend's arguments: one copy for all backends, so that what one refuses the
// others refuse with the same words. All throw Error(kInvalidArgument) naming the field, the value
// and the bound, before anything is changed. What a pointer points to cannot be checked.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/interface/backend.h"

namespace tributary {

/// Rows of the leaf that token `token` of the task sees: a prefix of the leaf (LeafTask).
[[nodiscard]] inline std::int32_t visible_rows(const LeafTask& task, std::int32_t token) noexcept {
  const std::int64_t bound = task.query_position + token + 1 - task.leaf_begin;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(bound, 0, task.rows));
}

/// Positions, record indices and strides stay below this, so that sums of two cannot overflow.
inline constexpr std::int64_t kIndexBound = std::int64_t{1} << 48;

void check_layout(const CacheLayout& layout);
void check_weight(const WeightView& view);
/// A page of one layer.
void check_page(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page);
/// `bytes` bytes of whole rows from `slot` on.
void check_rows(const CacheLayout& layout, std::string_view call, int layer, std::int32_t page,
                std::int32_t slot, std::size_t bytes);
void check_append(const CacheLayout& layout, const AppendArgs& args);
void check_attend(const CacheLayout& layout, const AttendArgs& args);
void check_merge(const MergeArgs& args);
void check_gather(const GatherArgs& args);
void check_gemm(const GemmArgs& args);
void check_rms_norm(const RmsNormArgs& args);
void check_rope(const RopeArgs& args);
/// Of each part, and that they are of the same tokens.
void check_latent_rows(const LatentRowsArgs& args);
void check_convert(const ConvertArgs& args);
void check_dense(const DenseAttendArgs& args);

/// Bytes of all rows of a valid layout; throws kPoolFull where they exceed the address space.
[[nodiscard]] std::size_t cache_bytes(const CacheLayout& layout);

}  // namespace tributary
