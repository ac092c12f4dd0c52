// Where a pool applies the two weights around its attention: W_UK to queries, W_UV to states.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tributary {

/// `home`: queries travel absorbed, and partial states of width kv_lora_rank come back; W_UV is
/// applied once, to the merged state. `leaves`: queries travel before W_UK, every worker absorbs
/// those that it receives, and W_UV is applied to the state of every leaf, also where nothing
/// travels, so that bits do not depend on placement; states of width v_head_dim are merged. Fewer
/// bytes for more arithmetic, and the same on all workers of a pool.
enum class ProjectAt : std::uint8_t { kHome, kLeaves, kLast = kLeaves };
inline constexpr std::array kProjectAt{ProjectAt::kHome, ProjectAt::kLeaves};

/// `home`, `leaves`.
[[nodiscard]] std::string_view project_at_name(ProjectAt place) noexcept;
/// Throws kInvalidArgument with the list.
[[nodiscard]] ProjectAt parse_project_at(std::string_view name);

}  // namespace tributary
