// The client of a pool: the source of queries and new latent rows, the sink of attention states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"

namespace tributary {

/// One client object per rank, called from the rank's thread. A call that throws fails the round on
/// every rank; nothing of that round is committed. A retried step asks for all its data again, and
/// delivers states a second time, with the same bits.
class PoolClient {
 public:
  PoolClient() = default;
  PoolClient(const PoolClient&) = delete;
  PoolClient& operator=(const PoolClient&) = delete;
  virtual ~PoolClient() = default;

  /// Called on the home. Writes the token records of `items` to the backend's memory. Record r
  /// starts at `records + r * record_bytes`: the query [heads, latent_dim] in the pool's query
  /// type, then the new latent row [latent_dim] in the cache's row type, then the positions that
  /// the query selects, [topk] of 32 bits (AttentionShape). Item i is at layer item_layer[i.item].
  virtual void write_tokens(std::span<const HomedItem> items,
                            std::span<const std::int32_t> item_layer, std::byte* records,
                            std::size_t record_bytes) = 0;

  /// Called on the home, after a round that succeeded on every rank. Reads the merged states of
  /// `items` in the backend's memory: records of AttentionShape::state_shape() indexed by
  /// HomedItem::state.
  virtual void read_states(std::span<const HomedItem> items,
                           std::span<const std::int32_t> item_layer, const float* states) = 0;
};

}  // namespace tributary
