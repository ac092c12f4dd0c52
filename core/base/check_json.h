// Whether text is JSON as we accept it, for folders that read it with a library of their choice.
#pragma once

#include <string_view>

namespace tributary {

/// Throws Error(kMalformedInput), with a message that starts with `source`, unless `text` is one
/// JSON value as parse_strict_json (strict_json.h) takes it.
void check_strict_json(std::string_view text, std::string_view source);

}  // namespace tributary
