// Files that stand where a model's file is expected, and are something else.
#pragma once

#include <string_view>

namespace tributary {

/// What a file is by its first bytes, as a sentence goes on after "is": a Git LFS pointer, which a
/// clone without Git LFS leaves, or an HTML page, which a download without permission leaves. Empty
/// for anything else.
[[nodiscard]] std::string_view foreign_file(std::string_view beginning) noexcept;

}  // namespace tributary
