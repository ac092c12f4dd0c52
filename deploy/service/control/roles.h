// The three roles that use a control plane, and their tokens: a client's token cannot drain a pool,
// an operator's cannot become one.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "deploy/service/control/control_options.h"

namespace tributary {

enum class Role {
  kClient,    // admits, asks for and frees sequences
  kPool,      // registers and answers
  kOperator,  // reads metrics and the cluster's report, drains
};
inline constexpr std::size_t kRoles = 3;
/// `client`, `pool`, `operator`.
[[nodiscard]] std::string_view role_name(Role role) noexcept;

/// One token may be valid for all three, and each role may also have its own.
class RoleTokens {
 public:
  /// Without tokens everybody has every role.
  RoleTokens() = default;
  /// Reads the files that the options name. Throws as read_token_file, and kInvalidArgument if two
  /// of them hold the same token.
  explicit RoleTokens(const ControlOptions& options);

  [[nodiscard]] bool any() const noexcept;
  /// Whether an Authorization header carries a token of the role. If another role has a token,
  /// nobody has a role without one.
  [[nodiscard]] bool permits(std::string_view authorization, Role role) const;
  /// The same for any role.
  [[nodiscard]] bool knows(std::string_view authorization) const;

 private:
  std::string all_;                        // of all three; empty: none
  std::array<std::string, kRoles> own_{};  // by role
};

/// Whether the options name any token file.
[[nodiscard]] bool has_tokens(const ControlOptions& options) noexcept;

}  // namespace tributary
