#include "deploy/app/golden/golden_layer.h"

#include <algorithm>
#include <numeric>

namespace tributary {
namespace {

std::vector<std::int64_t> positions_from(std::int64_t begin, std::int64_t count) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), begin);
  return positions;
}

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

}  // namespace

GoldenLayer::GoldenLayer(const GoldenCase& golden, const AttentionShape& shape, Backend& backend)
    : golden_(golden),
      shape_(shape),
      backend_(backend),
      layer_(backend, golden.shape, golden.weights,
             std::make_shared<MlaWorkspace>(backend, golden.shape, MlaWorkspaceOptions{})) {
  const std::int64_t batch = golden.batch;
  const std::int64_t steps = batch * golden.decode_steps;
  const std::int64_t heads = golden.shape.num_attention_heads;
  results_.prefill_output.resize(size(batch * golden.prefill_len * golden.shape.hidden_size));
  results_.decode_output.resize(size(steps * golden.shape.hidden_size));
  results_.cache.resize(size(batch * golden.tokens() * shape.latent_dim()));
  results_.query.resize(size(steps * heads * shape.latent_dim()));
  results_.latent.resize(size(steps * heads * shape.kv_lora_rank));
  results_.lse.resize(size(steps * heads));

  const auto floats = [&](std::int64_t count) {
    return backend.allocate(size(count) * sizeof(float));
  };
  const std::int64_t prompt = golden.prefill_len;
  hidden_ = floats(prompt * golden.shape.hidden_size);
  output_ = floats(prompt * golden.shape.hidden_size);
  rows_ = floats(prompt * shape.latent_dim());
  stored_ = backend.allocate(size(prompt) * shape.row_bytes());
  queries_ = floats(heads * shape.latent_dim());
}

std::span<const float> GoldenLayer::hidden(std::int64_t entry, std::int64_t position,
                                           std::int64_t count) const {
  const std::int64_t width = golden_.shape.hidden_size;
  return std::span(golden_.hidden_states)
      .subspan(size((entry * golden_.tokens() + position) * width), size(count * width));
}

void GoldenLayer::download(const float* device, std::vector<float>& results, std::int64_t offset,
                           std::int64_t count) {
  backend_.download(std::as_writable_bytes(std::span(results).subspan(size(offset), size(count))),
                    reinterpret_cast<const std::byte*>(device));
}

/// Encodes fp32 rows in the cache's format.
void GoldenLayer::encode(std::int64_t count, const Buffer& values, std::byte* rows) {
  const RowLayout plain = plain_row(shape_.latent_dim());
  backend_.call(ConvertArgs{.rows = count,
                            .src = values.data(),
                            .src_row = plain,
                            .src_stride_bytes = plain.bytes(),
                            .dst = rows,
                            .dst_row = shape_.row(),
                            .dst_stride_bytes = shape_.row_bytes()});
}

/// Decodes the rows of the cache to fp32 in `rows_`.
void GoldenLayer::decode(std::int64_t count, const std::byte* rows) {
  const RowLayout plain = plain_row(shape_.latent_dim());
  backend_.call(ConvertArgs{.rows = count,
                            .src = rows,
                            .src_row = shape_.row(),
                            .src_stride_bytes = shape_.row_bytes(),
                            .dst = rows_->data(),
                            .dst_row = plain,
                            .dst_stride_bytes = plain.bytes()});
}

/// Rows of the prompt's tokens begin .. begin + count - 1: fp32 in `rows_`, and in the cache's
/// format in `stored_`.
void GoldenLayer::latent_rows(std::int64_t entry, std::int64_t begin, std::int64_t count) {
  backend_.upload(hidden_->data(), std::as_bytes(hidden(entry, begin, count)));
  layer_.latent_rows(count, hidden_->as<float>(), positions_from(begin, count), rows_->as<float>());
  encode(count, *rows_, stored_->data());
}

void GoldenLayer::prompt_rows(std::int64_t entry, std::int64_t begin, std::int64_t count,
                              std::byte* rows) {
  latent_rows(entry, begin, count);
  backend_.download({rows, size(count) * shape_.row_bytes()}, stored_->data());
  decode(count, stored_->data());  // for the comparison
  download(rows_->as<float>(), results_.cache,
           (entry * golden_.tokens() + begin) * shape_.latent_dim(), count * shape_.latent_dim());
}

void GoldenLayer::prefill(int entry) {
  const std::int64_t prompt = golden_.prefill_len;
  const std::int64_t width = golden_.shape.hidden_size;
  latent_rows(entry, 0, prompt);
  decode(prompt, stored_->data());
  layer_.prefill_attention(prompt, hidden_->as<float>(), /*first_position=*/0, prompt,
                           rows_->as<float>(), output_->as<float>());
  download(output_->as<float>(), results_.prefill_output, entry * prompt * width, prompt * width);
}

void GoldenLayer::write_record(std::int64_t entry, std::int64_t position, std::byte* record) {
  const std::int64_t query = std::int64_t{shape_.heads} * shape_.latent_dim();
  const std::int64_t step = entry * golden_.decode_steps + position - golden_.prefill_len;
  backend_.upload(hidden_->data(), std::as_bytes(hidden(entry, position, 1)));
  layer_.project(1, hidden_->as<float>(), std::span(&position, 1), queries_->as<float>(),
                 rows_->as<float>());
  download(queries_->as<float>(), results_.query, step * query, query);
  backend_.call(ConvertArgs{.rows = 1,
                            .src = queries_->data(),
                            .src_row = plain_row(query),
                            .dst = record,
                            .dst_row = plain_row(query, shape_.query_dtype)});
  std::byte* row = record + shape_.query_bytes();
  encode(1, *rows_, row);
  decode(1, row);
  download(rows_->as<float>(), results_.cache,
           (entry * golden_.tokens() + position) * shape_.latent_dim(), shape_.latent_dim());
}

void GoldenLayer::take_state(std::int64_t entry, std::int64_t position, const float* record) {
  const StateShape shape = shape_.state_shape();
  const std::int64_t values = std::int64_t{shape.heads} * shape.width;
  const std::int64_t width = golden_.shape.hidden_size;
  const std::int64_t step = entry * golden_.decode_steps + position - golden_.prefill_len;
  download(record, results_.latent, step * values, values);
  download(record + values, results_.lse, step * shape.heads, shape.heads);
  layer_.output(1, record, output_->as<float>());
  download(output_->as<float>(), results_.decode_output, step * width, width);
}

}  // namespace tributary
