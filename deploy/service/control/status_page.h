// The status page as the build embedded it: status_page.html.
#pragma once

#include <string_view>

namespace tributary {

[[nodiscard]] std::string_view status_page() noexcept;

}  // namespace tributary
