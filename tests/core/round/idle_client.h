// A client that contributes nothing to a round and takes nothing from it, and the base of those
// that contribute something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/round/pool_client.h"

namespace tributary {

class IdleClient : public PoolClient {
 public:
  void write_tokens(std::span<const HomedItem>, std::span<const std::int32_t>, std::byte*,
                    std::size_t) override {}
  void read_states(std::span<const HomedItem>, std::span<const std::int32_t>,
                   const float*) override {}
};

}  // namespace tributary
