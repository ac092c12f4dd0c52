// The keys of a config.json beside weights that change the attention. Included by .cc files alone,
// as config_keys.h is.
#pragma once

#include "core/model/config_keys.h"

namespace tributary {

/// Throws kUnsupported, naming the key, unless the attention is the one that we compute. A key that
/// we do not know is judged by the words of its name ("attn", "qk", "rope", "gate", ...): null,
/// false, an empty list and full_attention for every layer are accepted, as transformers saves
/// them. Keys about other parts of the model are ignored.
void check_attention_keys(const ConfigKeys& config);

}  // namespace tributary
