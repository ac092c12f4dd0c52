// The names of a prompt's blocks.
#pragma once

#include <string>
#include <vector>

#include "core/sequencer/admit_request.h"

namespace tributary {

/// One name for each key: it holds the key, the size of a block and the salt, and is compared
/// whole. A pool's rows have one shape and one format, so these need no place in it.
[[nodiscard]] std::vector<std::string> block_names(const Prefix& prefix);

/// Throws kInvalidArgument for keys of other lengths than 16 to 32 bytes, and for half a key.
void check_keys(const Prefix& prefix);
/// The same, and for blocks that do not divide the leaf or are not whole pages, a salt of more than
/// 64 bytes, and more keys than the prompt has full blocks.
void check_prefix(const Prefix& prefix, std::int64_t prompt_tokens, int leaf_tokens);

}  // namespace tributary
