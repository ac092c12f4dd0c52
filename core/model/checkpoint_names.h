// The names of a checkpoint's tensors before `self_attn.`.
#pragma once

#include <array>
#include <string_view>

namespace tributary {

/// What stands before a layer's number: of a model of text, and of two forms of one that sees.
inline constexpr std::array<std::string_view, 3> kLayerPrefixes{
    "model.layers.", "language_model.model.layers.", "model.language_model.layers."};

}  // namespace tributary
