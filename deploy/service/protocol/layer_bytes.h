// The bytes of a token of a layer request in each mode, and which pools serve the mode.
#pragma once

#include <cstddef>
#include <string_view>

#include "core/model/pool_shape.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary::wire {

/// The parts of LayerMode's table, of one token.
struct TokenBytes {
  std::size_t query = 0;  // kForward: the hidden state
  std::size_t row = 0;
  std::size_t output = 0;
  std::size_t selected = 0;  // behind the row, see AttentionShape
  [[nodiscard]] std::size_t input() const noexcept { return query + row + selected; }
};
[[nodiscard]] TokenBytes token_bytes(const PoolShape& shape, LayerMode mode);

/// The weights that a pool lacks for the mode, as the end of a sentence; empty where it serves the
/// mode.
[[nodiscard]] std::string_view missing_weights(const PoolShape& shape, LayerMode mode);

}  // namespace tributary::wire
