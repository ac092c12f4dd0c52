#include "deploy/app/golden/golden_client.h"

namespace tributary {

void GoldenClient::fill_rows(const Sequence& sequence, int /*layer*/, std::int64_t begin,
                             std::int64_t count, std::byte* rows) {
  layer_.prompt_rows(sequence.tag, begin, count, rows);
}

void GoldenClient::write_tokens(std::span<const HomedItem> items,
                                std::span<const std::int32_t> /*item_layer*/, std::byte* records,
                                std::size_t record_bytes) {
  for (const HomedItem& item : items) {
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      layer_.write_record(item.tag, item.position + t,
                          records + static_cast<std::size_t>(item.token_record + t) * record_bytes);
    }
  }
}

void GoldenClient::read_states(std::span<const HomedItem> items,
                               std::span<const std::int32_t> /*item_layer*/, const float* states) {
  const std::size_t record = layer_.shape().state_shape().record_floats();
  for (const HomedItem& item : items) {
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      layer_.take_state(item.tag, item.position + t,
                        states + static_cast<std::size_t>(item.state + t) * record);
    }
  }
}

}  // namespace tributary
