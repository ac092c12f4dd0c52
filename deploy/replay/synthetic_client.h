// The pool's client in a replay: rows and queries from the generator, outputs into the digest, a
// sample of them kept for recomputation in float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/pool/pool_client.h"
#include "core/pool/round.h"
#include "core/workload/digest.h"
#include "core/workload/generator.h"

namespace tributary {

class SyntheticClient final : public PoolClient {
 public:
  /// Recomputes a share `canary_rate` of (token, layer), chosen by hash, and at most `kMaxCanaries`
  /// of this rank.
  SyntheticClient(const AttentionShape& shape, Backend& backend, std::uint64_t seed,
                  double canary_rate);

  void fill_rows(const Sequence& sequence, int layer, std::int64_t begin, std::int64_t count,
                 std::byte* rows) override;
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

  /// Outputs that this rank's sequences got.
  [[nodiscard]] const Digest& digest() const noexcept { return digest_; }

  struct CanaryResult {
    std::int64_t checked = 0;
    double max_relative_error = 0;  // relative Frobenius, over the heads of one token
  };
  /// Recomputes the kept outputs; takes tens of milliseconds each.
  [[nodiscard]] CanaryResult check_canaries() const;

  static constexpr std::size_t kMaxCanaries = 64;

 private:
  struct Canary {
    std::int64_t tag, position;
    int layer;
    std::vector<float> output;  // [heads, kv_lora_rank]
  };
  [[nodiscard]] bool chosen(std::int64_t tag, std::int64_t position, int layer) const;

  AttentionShape shape_;
  Backend& backend_;
  std::uint64_t seed_;
  double canary_rate_;
  TokenGenerator generator_;
  Digest digest_;
  std::vector<Canary> canaries_;
  std::vector<float> values_;      // one query or row
  std::vector<std::byte> record_;  // one token record
  std::vector<float> state_;       // one state record
};

}  // namespace tributary
