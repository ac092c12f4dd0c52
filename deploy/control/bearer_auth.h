// Who may use the control plane: whoever holds the token of a file.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// Throws kInvalidArgument for a control plane without a token that others than this machine could
/// reach.
void check_exposure(const std::string& listen, bool has_token);

/// Whether an Authorization header carries `token`, compared in a time that depends on the lengths
/// alone.
[[nodiscard]] bool is_authorized(std::string_view authorization, std::string_view token);

}  // namespace tributary
