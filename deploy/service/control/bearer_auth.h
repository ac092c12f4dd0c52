// Authorization of the control plane's users: they hold the token of a file.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// Throws kInvalidArgument if other machines could reach a control plane without a token.
void check_exposure(const std::string& listen, bool has_token);

/// Whether a Host header names this machine itself (`localhost` or a loopback address, with any
/// port) or is missing, which never happens in a browser. Without a token no other request is
/// answered: a site whose name was made to resolve to 127.0.0.1 would have the same origin as ours.
[[nodiscard]] bool is_local_host(std::string_view host);

/// Whether an Authorization header carries `token`, compared in a time that depends on the lengths
/// alone.
[[nodiscard]] bool is_authorized(std::string_view authorization, std::string_view token);

}  // namespace tributary
