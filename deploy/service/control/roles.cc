#include "deploy/service/control/roles.h"

#include <algorithm>

#include "core/base/error.h"
#include "deploy/service/control/bearer_auth.h"
#include "deploy/service/protocol/token_file.h"

namespace tributary {
namespace {

struct NamedRole {
  Role role;
  std::string_view name;
  std::string ControlOptions::*file;
};

constexpr std::array<NamedRole, kRoles> kNamed{
    NamedRole{Role::kClient, "client", &ControlOptions::client_token_file},
    NamedRole{Role::kPool, "pool", &ControlOptions::pool_token_file},
    NamedRole{Role::kOperator, "operator", &ControlOptions::operator_token_file}};

/// An empty token is none.
bool carries(std::string_view authorization, const std::string& token) {
  return !token.empty() && is_authorized(authorization, token);
}

}  // namespace

std::string_view role_name(Role role) noexcept {
  return kNamed.at(static_cast<std::size_t>(role)).name;
}

RoleTokens::RoleTokens(const ControlOptions& options) {
  if (!options.token_file.empty()) all_ = read_token_file(options.token_file);
  for (const NamedRole& named : kNamed) {
    const std::string& file = options.*named.file;
    if (file.empty()) continue;
    std::string token = read_token_file(file);
    if (token == all_ || std::ranges::find(own_, token) != own_.end()) {
      fail(ErrorCode::kInvalidArgument,
           "token file {}: the token of another role: one for all of them is --token-file's", file);
    }
    own_.at(static_cast<std::size_t>(named.role)) = std::move(token);
  }
}

bool RoleTokens::any() const noexcept {
  return !all_.empty() ||
         std::ranges::any_of(own_, [](const std::string& token) { return !token.empty(); });
}

bool RoleTokens::permits(std::string_view authorization, Role role) const {
  return !any() || carries(authorization, all_) ||
         carries(authorization, own_.at(static_cast<std::size_t>(role)));
}

bool RoleTokens::knows(std::string_view authorization) const {
  return std::ranges::any_of(
      kNamed, [&](const NamedRole& named) { return permits(authorization, named.role); });
}

bool has_tokens(const ControlOptions& options) noexcept {
  return !options.token_file.empty() || std::ranges::any_of(kNamed, [&](const NamedRole& named) {
    return !(options.*named.file).empty();
  });
}

}  // namespace tributary
