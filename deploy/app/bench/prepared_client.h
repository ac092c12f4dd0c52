// A pool's client that costs next to nothing: rows and queries are made once and kept where the
// backend computes, and states are ignored.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/elements.h"
#include "core/model/attention_shape.h"
#include "core/round/pool_client.h"
#include "core/workload/generator.h"

namespace tributary::bench {

/// Rows and queries made once: every token gets the same ones.
class PreparedClient final : public PoolClient {
 public:
  PreparedClient(const AttentionShape& shape, Backend& backend)
      : backend_(backend), record_(shape.token_record_bytes()), query_bytes_(shape.query_bytes()) {
    const TokenGenerator generator(1);
    std::vector<float> query(static_cast<std::size_t>(shape.heads * shape.latent_dim()));
    std::vector<float> row(static_cast<std::size_t>(shape.latent_dim()));
    generator.query(0, 0, 0, query);
    generator.row(0, 0, 0, row);
    store_elements(shape.query_dtype, query, record_.data());
    shape.row().encode(row, record_.data() + query_bytes_);
    prepared_ = backend_.allocate(record_.size());
    backend_.upload(prepared_->data(), record_);
    backend_.synchronize(Deadline::after(std::chrono::seconds(60)));
  }

  /// So many times the row.
  void write_rows(std::int64_t count, std::byte* rows) const {
    const auto row = std::span(record_).subspan(query_bytes_);
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy(row.begin(), row.end(), rows + static_cast<std::size_t>(i) * row.size());
    }
  }
  /// Tokens of the sequences homed here come first, without gaps: one call for all of them.
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> /*item_layer*/,
                    std::byte* records, std::size_t record_bytes) override {
    std::size_t tokens = 0;
    for (const HomedItem& item : items) tokens += static_cast<std::size_t>(item.tokens);
    zeros_.resize(tokens);
    backend_.call(GatherArgs{zeros_, prepared_->data(), records, record_bytes});
  }
  void read_states(std::span<const HomedItem> /*items*/,
                   std::span<const std::int32_t> /*item_layer*/, const float* /*states*/) override {
  }

 private:
  Backend& backend_;
  std::vector<std::byte> record_;
  std::size_t query_bytes_;
  std::unique_ptr<Buffer> prepared_;  // record_
  std::vector<std::int64_t> zeros_;   // the record that each token gets: all the same one
};

}  // namespace tributary::bench
