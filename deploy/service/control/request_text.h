// The rules for the bodies and queries of the control plane's requests.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

/// Whether it is no type, or application/json with any parameters.
[[nodiscard]] bool is_json_content(std::string_view content_type);
/// The name in `pool=NAME`; empty for an empty query. Throws kMalformedInput.
[[nodiscard]] std::string parse_pool_query(std::string_view query);
/// A worker's rank as decimal text. Throws kMalformedInput.
[[nodiscard]] int parse_rank(std::string_view text);
/// Accepts nothing or {}. Throws kMalformedInput.
void require_empty_body(std::string_view body);

}  // namespace tributary
