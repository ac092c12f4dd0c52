#include "deploy/app/replay/synthetic_tokens.h"

#include <algorithm>
#include <cstring>

#include "core/base/elements.h"
#include "core/base/hash.h"
#include "core/reference/error_measures.h"
#include "core/reference/reference_attend.h"

namespace tributary {
SyntheticTokens::SyntheticTokens(const AttentionShape& shape, std::uint64_t seed,
                                 double canary_rate, const RowOrigins* origins)
    : shape_(shape),
      seed_(seed),
      canary_rate_(canary_rate),
      origins_(origins),
      generator_(seed),
      values_(static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.latent_dim())),
      row_(shape.row().values()),
      selected_(static_cast<std::size_t>(shape.topk)) {}

void SyntheticTokens::write_rows(std::int64_t tag, int layer, std::int64_t begin,
                                 std::int64_t count, std::byte* rows) {
  const RowLayout layout = shape_.row();
  for (std::int64_t i = 0; i < count; ++i) {
    make_row(tag, layer, begin + i, row_);
    layout.encode(row_, rows);
    rows += layout.bytes();
  }
}

void SyntheticTokens::make_row(std::int64_t tag, int layer, std::int64_t position,
                               std::span<float> row) const {
  generator_.row(origins_ == nullptr ? tag : origins_->of(tag, position), layer, position, row);
}

void SyntheticTokens::write_record(std::int64_t tag, int layer, std::int64_t position,
                                   std::byte* record) {
  generator_.query(tag, layer, position, values_);
  store_elements(shape_.query_dtype, values_, record);
  write_rows(tag, layer, position, 1, record + shape_.query_bytes());
  generator_.selected(tag, layer, position, selected_);
  if (shape_.topk > 0) {
    std::memcpy(record + shape_.selected_offset(), selected_.data(), shape_.selected_bytes());
  }
}

void SyntheticTokens::take_output(std::int64_t tag, int layer, std::int64_t position,
                                  std::span<const float> output) {
  digest_.add(tag, position, layer, output);
  if (canaries_.size() < kMaxCanaries && chosen(tag, position, layer)) {
    canaries_.push_back({tag, position, layer, {output.begin(), output.end()}});
  }
}

bool SyntheticTokens::chosen(std::int64_t tag, std::int64_t position, int layer) const {
  std::uint64_t hash = mix64(seed_ ^ static_cast<std::uint64_t>(tag) * kGoldenGamma);
  hash = mix64(hash ^ static_cast<std::uint64_t>(position) * kGoldenGamma);
  hash = mix64(hash + static_cast<std::uint64_t>(layer));
  return static_cast<double>(hash >> 11) * 0x1p-53 < canary_rate_;
}

SyntheticTokens::CanaryResult SyntheticTokens::check_canaries() const {
  const RowLayout layout = shape_.row();
  const std::size_t width = layout.values();
  std::vector<float> query(values_.size());
  std::vector<float> rows(256 * width);
  CanaryResult result;
  for (const Canary& canary : canaries_) {
    generator_.query(canary.tag, canary.layer, canary.position, query);
    round_elements(shape_.query_dtype, query);
    ReferenceAttention reference(shape_.heads, shape_.kv_lora_rank, shape_.qk_rope_head_dim,
                                 static_cast<double>(shape_.softmax_scale),
                                 std::vector<double>(query.begin(), query.end()));
    std::size_t filled = 0;
    std::vector<std::int32_t> selected(selected_.size());
    generator_.selected(canary.tag, canary.layer, canary.position, selected);
    const bool all = canary.position < shape_.topk || shape_.topk == 0;
    const std::int64_t attended = all ? canary.position + 1 : shape_.topk;
    for (std::int64_t i = 0; i < attended; ++i) {
      const std::int64_t p = all ? i : selected[static_cast<std::size_t>(i)];
      make_row(canary.tag, canary.layer, p, std::span(rows).subspan(filled, width));
      filled += width;
      if (filled == rows.size() || i + 1 == attended) {
        const std::span block = std::span(rows).first(filled);
        layout.round(block);
        reference.add(std::span<const float>(block));
        filled = 0;
      }
    }
    const TensorError error = measure_error(std::span<const float>(canary.output),
                                            reference.state().o, shape_.kv_lora_rank);
    result.max_relative_error = std::max(result.max_relative_error, error.relative_frobenius);
    ++result.checked;
  }
  return result;
}

}  // namespace tributary
