#include "deploy/app/replay/synthetic_client.h"

namespace tributary {

SyntheticClient::SyntheticClient(const AttentionShape& shape, Backend& backend, std::uint64_t seed,
                                 double canary_rate)
    : tokens_(shape, seed, canary_rate),
      backend_(backend),
      record_(shape.token_record_bytes()),
      state_(shape.state_shape().record_floats()) {}

void SyntheticClient::fill_rows(const Sequence& sequence, int layer, std::int64_t begin,
                                std::int64_t count, std::byte* rows) {
  tokens_.write_rows(sequence.tag, layer, begin, count, rows);
}

void SyntheticClient::write_tokens(std::span<const HomedItem> items,
                                   std::span<const std::int32_t> item_layer, std::byte* records,
                                   std::size_t record_bytes) {
  for (const HomedItem& item : items) {
    const int layer = item_layer[static_cast<std::size_t>(item.item)];
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      tokens_.write_record(item.tag, layer, item.position + t, record_.data());
      backend_.upload(records + static_cast<std::size_t>(item.token_record + t) * record_bytes,
                      record_);
    }
  }
}

void SyntheticClient::read_states(std::span<const HomedItem> items,
                                  std::span<const std::int32_t> item_layer, const float* states) {
  const StateShape shape = tokens_.shape().state_shape();
  const std::span<const float> output(
      state_.data(), static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.width));
  for (const HomedItem& item : items) {
    const int layer = item_layer[static_cast<std::size_t>(item.item)];
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      const float* record =
          states + static_cast<std::size_t>(item.state + t) * shape.record_floats();
      backend_.download(std::as_writable_bytes(std::span(state_)),
                        reinterpret_cast<const std::byte*>(record));
      tokens_.take_output(item.tag, layer, item.position + t, output);
    }
  }
}

}  // namespace tributary
