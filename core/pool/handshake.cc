#include "core/pool/handshake.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/pool/gather_all.h"

namespace tributary {
namespace {

/// What all ranks must agree on before they form a pool, field by field for the message.
struct Handshake {
  std::int32_t error = 0;  // of this rank's own set-up
  std::array<std::int64_t, 10> fields{};
  Text text{};  // the backend's name, or the error's message
};
constexpr std::array<std::string_view, 10> kHandshakeFields{
    "heads",         "kv_lora_rank", "qk_rope_head_dim", "row type", "query type",
    "softmax_scale", "leaf_tokens",  "layers",           "pages",    "exchange"};

std::array<std::int64_t, 10> handshake_fields(const WorkerConfig& config) {
  const AttentionShape& a = config.attention;
  return {a.heads,
          a.kv_lora_rank,
          a.qk_rope_head_dim,
          static_cast<std::int64_t>(a.row_dtype),
          static_cast<std::int64_t>(a.query_dtype),
          std::bit_cast<std::int32_t>(a.softmax_scale),
          config.leaf_tokens,
          config.layers,
          config.pages,
          static_cast<std::int64_t>(config.exchange)};
}

std::string field_text(std::string_view name, std::int64_t value) {
  if (name.ends_with("type")) return std::string(dtype_name(static_cast<DType>(value)));
  if (name == "exchange") return std::string(exchange_name(static_cast<Exchange>(value)));
  if (name == "softmax_scale") {
    return fmt::format("{}", std::bit_cast<float>(static_cast<std::int32_t>(value)));
  }
  return std::to_string(value);
}

}  // namespace

void check_attention_shape(const AttentionShape& shape) {
  if (shape.heads < 1) {
    fail(ErrorCode::kInvalidArgument, "heads is {}, expected at least 1", shape.heads);
  }
  if (shape.query_dtype != DType::kBF16 && shape.query_dtype != DType::kF32) {
    fail(ErrorCode::kInvalidArgument, "query type is {}, expected bf16 or f32",
         dtype_name(shape.query_dtype));
  }
  if (!(std::isfinite(shape.softmax_scale) && shape.softmax_scale > 0)) {
    fail(ErrorCode::kInvalidArgument, "softmax_scale is {}, expected positive and finite",
         shape.softmax_scale);
  }
}

void check_exchange(const Backend& backend, const Communicator& communicator,
                    const Communicator& exchange) {
  if (!backend.host_memory() && &exchange == &communicator) {
    fail(ErrorCode::kFailedPrecondition, "communicator {} cannot read the memory of backend {}",
         communicator.name(), backend.name());
  }
  if (exchange.rank() != communicator.rank() || exchange.size() != communicator.size()) {
    fail(ErrorCode::kInvalidArgument, "rank {} of {} exchanges as rank {} of {}",
         communicator.rank(), communicator.size(), exchange.rank(), exchange.size());
  }
}

void handshake(const WorkerConfig& config, std::string_view backend, const Status& set_up,
               Communicator& communicator) {
  Handshake mine{.error = static_cast<std::int32_t>(set_up.code()),
                 .fields = handshake_fields(config),
                 .text = {}};
  set_text(mine.text, set_up.ok() ? backend : std::string_view(set_up.message()));
  std::vector<Handshake> all;
  gather_all(communicator, mine, all, Deadline::after(config.round_timeout)).throw_if_error();
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].error != 0) {
      fail(static_cast<ErrorCode>(all[r].error), "worker {}: {}", r, all[r].text.data());
    }
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    for (std::size_t f = 0; f < kHandshakeFields.size(); ++f) {
      if (all[r].fields[f] != all[0].fields[f]) {
        fail(ErrorCode::kInvalidArgument, "{} is {} on worker 0 and {} on worker {}",
             kHandshakeFields[f], field_text(kHandshakeFields[f], all[0].fields[f]),
             field_text(kHandshakeFields[f], all[r].fields[f]), r);
      }
    }
    if (all[r].text != all[0].text) {
      fail(ErrorCode::kInvalidArgument,
           "worker 0 computes with {} and worker {} with {}: their bits would differ",
           all[0].text.data(), r, all[r].text.data());
    }
  }
}

}  // namespace tributary
