// The pool's client in a verification: it passes one golden case entry by entry.
#pragma once

#include <cstdint>
#include <span>

#include "core/round/pool_client.h"
#include "core/round/round.h"
#include "deploy/app/golden/golden_layer.h"

namespace tributary {

/// A sequence's tag is its batch entry.
class GoldenClient final : public PoolClient {
 public:
  explicit GoldenClient(GoldenLayer& layer) : layer_(layer) {}

  void fill_rows(const Sequence& sequence, int layer, std::int64_t begin, std::int64_t count,
                 std::byte* rows) override;
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

 private:
  GoldenLayer& layer_;
};

}  // namespace tributary
