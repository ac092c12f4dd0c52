// The pool's client in a replay: passes the data of SyntheticTokens through the backend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/model/attention_shape.h"
#include "core/round/pool_client.h"
#include "deploy/app/replay/synthetic_tokens.h"

namespace tributary {

class SyntheticClient final : public PoolClient {
 public:
  /// See SyntheticTokens; canaries belong to this rank.
  SyntheticClient(const AttentionShape& shape, Backend& backend, std::uint64_t seed,
                  double canary_rate);

  void fill_rows(const Sequence& sequence, int layer, std::int64_t begin, std::int64_t count,
                 std::byte* rows) override;
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

  /// Outputs that this rank's sequences got.
  [[nodiscard]] const Digest& digest() const noexcept { return tokens_.digest(); }

  using CanaryResult = SyntheticTokens::CanaryResult;
  /// Recomputes the kept outputs; takes tens of milliseconds each.
  [[nodiscard]] CanaryResult check_canaries() const { return tokens_.check_canaries(); }

  static constexpr std::size_t kMaxCanaries = SyntheticTokens::kMaxCanaries;

 private:
  SyntheticTokens tokens_;
  Backend& backend_;
  std::vector<std::byte> record_;  // one token record
  std::vector<float> state_;       // one state record
};

}  // namespace tributary
