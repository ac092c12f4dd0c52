// `tributary info`: the abilities of this build on this machine.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

struct InfoOptions {
  bool json = false;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(json, "--json", "Print it as JSON");
  }
};

/// `0.1.0`.
[[nodiscard]] std::string_view version() noexcept;
/// The commit that was built: `1a2b3c4`, with `-dirty` after it where files had been changed;
/// `unknown` outside a repository.
[[nodiscard]] std::string_view build_commit() noexcept;
/// `Release`, `Debug`.
[[nodiscard]] std::string_view build_type() noexcept;
/// `0.1.0 (commit 1a2b3c4, Release)`.
[[nodiscard]] std::string build_text();

/// Version, instruction sets, backends and communicators, the versions of its libraries at run time
/// and at build time, shape presets with bytes per token.
[[nodiscard]] std::string info_text();
/// The same facts as JSON.
[[nodiscard]] std::string info_json();

}  // namespace tributary
