// Versions of the libraries that our HTTP uses.
#pragma once

#include <string>

namespace tributary {

/// The version of the library that is loaded: `3.0.16`.
[[nodiscard]] std::string openssl_version();
/// The version of the headers that this was compiled with: `1.81`.
[[nodiscard]] std::string boost_version();

}  // namespace tributary
