// Bodies of the control plane's requests.
#pragma once

#include <string_view>

#include "deploy/control/pool_choice.h"

namespace tributary {

/// No type, or application/json with any parameters.
[[nodiscard]] bool is_json_content(std::string_view content_type);
/// {"prompt_tokens", "max_new_tokens", "spread"?}, the key from its header. Throws kMalformedInput.
[[nodiscard]] AdmissionRequest parse_sequence_request(std::string_view body,
                                                      std::string_view idempotency_key);
/// Nothing, or {}. Throws kMalformedInput.
void require_empty_body(std::string_view body);

}  // namespace tributary
