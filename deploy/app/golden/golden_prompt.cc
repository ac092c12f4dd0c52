#include "deploy/app/golden/golden_prompt.h"

#include <algorithm>
#include <thread>

#include "core/base/error.h"
#include "core/model/mla_shape.h"

namespace tributary {

namespace {

void check_equal(const std::string& name, PoolShape expected, const PoolShape& shape) {
  expected.layers = 1;
  expected.leaf_tokens = shape.leaf_tokens;
  if (const auto difference = find_difference(expected, shape)) {
    fail(ErrorCode::kInvalidArgument, "{}: {} is {}, but the service's pool has {}", name,
         difference->field, difference->first, difference->second);
  }
}

}  // namespace

void check_shape(const GoldenCase& golden, const PoolShape& shape) {
  const ModelShape& model = golden.shape;
  PoolShape expected{attention_shape(mla_shape(model), shape.row_format, shape.query_dtype)};
  if (shape.v_head_dim != 0) {
    expected.qk_nope_head_dim = model.qk_nope_head_dim;
    expected.v_head_dim = model.v_head_dim;
    expected.hidden_size = model.hidden_size;
    expected.latent_norm_eps = static_cast<float>(model.latent_norm_eps);
  }
  check_equal(golden.name, expected, shape);
}

void check_shape(const GoldenSelection& golden, const PoolShape& shape) {
  check_equal(golden.name,
              {attention_shape(mla_shape(golden), shape.row_format, shape.query_dtype)}, shape);
}

MlaShape mla_shape(const GoldenSelection& golden) {
  return {.name = golden.name,
          .heads = golden.heads,
          .kv_lora_rank = golden.kv_lora_rank,
          .qk_rope_head_dim = golden.qk_rope_head_dim,
          .layers = 1,
          .softmax_scale = golden.softmax_scale,
          .topk = golden.topk};
}

std::vector<std::byte> prompt_rows(const GoldenCase& golden, GoldenLayer& layer, int entry) {
  const std::size_t row_bytes = layer.shape().row_bytes();
  std::vector<std::byte> rows(static_cast<std::size_t>(golden.prefill_len) * row_bytes);
  layer.prompt_rows(entry, 0, golden.prefill_len, rows.data());
  return rows;
}

void push_prompt(TierClient& client, const SequenceHandle& sequence,
                 const std::vector<std::byte>& rows, int senders) {
  const std::int64_t count = sequence.prompt_tokens;
  const std::size_t row_bytes = rows.size() / static_cast<std::size_t>(count);
  std::vector<Status> outcomes(static_cast<std::size_t>(senders));
  {
    std::vector<std::jthread> threads;
    threads.reserve(outcomes.size());
    for (int sender = 0; sender < senders; ++sender) {
      threads.emplace_back([&, sender] {
        // The borders are the sender's, not the owners', as in a sharded prefill tier.
        const std::int64_t begin = count * sender / senders;
        const std::int64_t end = count * (sender + 1) / senders;
        outcomes[static_cast<std::size_t>(sender)] = status_of([&] {
          if (begin == end) return;
          client.push_rows(
              sequence, /*layer=*/0, begin,
              std::span(rows).subspan(static_cast<std::size_t>(begin) * row_bytes,
                                      static_cast<std::size_t>(end - begin) * row_bytes));
        });
      });
    }
  }
  for (const Status& outcome : outcomes) outcome.throw_if_error();
  client.wait_ready(sequence);
}

}  // namespace tributary
