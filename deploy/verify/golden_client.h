// The pool's client in a verification: rows, queries and outputs of one golden case through the MLA
// layer, and everything that it computed, for comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/layer/mla_layer.h"
#include "core/pool/pool_client.h"
#include "core/pool/round.h"
#include "core/reference/golden_case.h"

namespace tributary {

/// What was computed, laid out as the expected tensors are (golden_case.h), in fp32. Zero where
/// another rank computed it, so that the sum over ranks is the whole.
struct GoldenResults {
  std::vector<float> prefill_output;  // [B, P, hidden]
  std::vector<float> decode_output;   // [B, D, hidden]
  std::vector<float> cache;           // [B, T, C + R], as stored
  std::vector<float> query;           // [B, D, H, C + R], before rounding to the query type
  std::vector<float> latent;          // [B, D, H, C]
  std::vector<float> lse;             // [B, D, H]

  [[nodiscard]] std::vector<std::vector<float>*> all();
};

class GoldenClient final : public PoolClient {
 public:
  GoldenClient(const GoldenCase& golden, const AttentionShape& shape, Backend& backend);

  void fill_rows(const Sequence& sequence, int layer, std::int64_t begin, std::int64_t count,
                 std::byte* rows) override;
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

  /// Output of the prompt of batch entry `entry`, attention included, on this rank alone.
  void prefill(int entry);

  [[nodiscard]] GoldenResults& results() noexcept { return results_; }

 private:
  [[nodiscard]] std::span<const float> hidden(std::int64_t entry, std::int64_t position,
                                              std::int64_t count) const;
  void latent_rows(std::int64_t entry, std::int64_t begin, std::int64_t count);
  void download(const float* device, std::vector<float>& results, std::int64_t offset,
                std::int64_t count);

  const GoldenCase& golden_;
  AttentionShape shape_;
  Backend& backend_;
  MlaLayer layer_;
  GoldenResults results_;
  // Device scratch for up to a whole prompt of one sequence.
  std::unique_ptr<Buffer> hidden_, rows_, stored_, queries_, output_;
};

}  // namespace tributary
