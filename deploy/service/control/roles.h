// The three who use a control plane, and the tokens that they show: a client's cannot drain a pool,
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

/// One token may be all three, and each may have its own besides.
class RoleTokens {
 public:
  /// None: everybody is everything.
  RoleTokens() = default;
  /// Reads the files that the options name. Throws as read_token_file, and kInvalidArgument for one
  /// token in two of them.
  explicit RoleTokens(const ControlOptions& options);

  [[nodiscard]] bool any() const noexcept;
  /// Whether an Authorization header carries a token of the role. A role without a token is nobody
  /// where another has one.
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
