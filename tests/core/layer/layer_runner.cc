// The steps of a golden case over one cache.
#include "tests/core/layer/layer_runner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <span>

#include "tests/core/layer/random_layer.h"

namespace tributary::test {
namespace {

constexpr int kLayers = 2;  // the case uses the second; the first stays NaN
constexpr int kLayer = 1;

Deadline soon() {
  return Deadline::after(std::chrono::minutes(1));
}

class Runner {
 public:
  Runner(Backend& backend, const GoldenCase& golden, const LayerRunOptions& options)
      : backend_(backend),
        golden_(golden),
        options_(options),
        shape_(golden.shape),
        layer_(backend, golden.shape, golden.weights,
               std::make_shared<MlaWorkspace>(
                   backend, golden.shape, MlaWorkspaceOptions{.max_tokens = options.max_tokens})),
        sequence_pages_((golden.tokens() + kPageTokens - 1) / kPageTokens) {
    const int pages = 2 * golden.batch * sequence_pages_;
    cache_ = backend.make_cache({.layers = kLayers,
                                 .pages = pages,
                                 .kv_lora_rank = shape_.kv_lora_rank,
                                 .qk_rope_head_dim = shape_.qk_rope_head_dim,
                                 .row_format = RowFormat::kF32});
    fill_with_nan(pages);
    // Backwards through every other page: neighbours in a sequence are never neighbours in memory.
    for (int i = 0; i < golden.batch * sequence_pages_; ++i)
      block_table_.push_back(pages - 1 - 2 * i);
    run_.rows.resize(static_cast<std::size_t>(golden.batch) * golden.tokens() *
                     shape_.latent_dim());
  }

  LayerRun run() {
    for (int b = 0; b < golden_.batch; ++b) prefill(b);
    run_.decode_output.resize(decode_size(shape_.hidden_size));
    run_.decode_query.resize(decode_size(heads() * shape_.latent_dim()));
    run_.decode_lse.resize(decode_size(heads()));
    run_.decode_latent.resize(decode_size(heads() * shape_.kv_lora_rank));
    for (int d = 0; d < golden_.decode_steps; d += options_.step_tokens) {
      decode(d, std::min(options_.step_tokens, golden_.decode_steps - d));
    }
    return std::move(run_);
  }

 private:
  [[nodiscard]] std::int64_t heads() const { return shape_.num_attention_heads; }
  [[nodiscard]] std::size_t decode_size(std::int64_t width) const {
    return static_cast<std::size_t>(std::int64_t{golden_.batch} * golden_.decode_steps * width);
  }
  [[nodiscard]] std::span<const float> hidden(int sequence, int first, int count) const {
    const auto width = static_cast<std::size_t>(shape_.hidden_size);
    const auto begin = static_cast<std::size_t>(std::int64_t{sequence} * golden_.tokens() + first);
    return std::span(golden_.hidden_states)
        .subspan(begin * width, static_cast<std::size_t>(count) * width);
  }
  [[nodiscard]] std::int32_t page_of(int sequence, int position) const {
    return block_table_[static_cast<std::size_t>(std::int64_t{sequence} * sequence_pages_ +
                                                 position / kPageTokens)];
  }

  void fill_with_nan(int pages) {
    const std::vector<float> nan(static_cast<std::size_t>(shape_.latent_dim()),
                                 std::numeric_limits<float>::quiet_NaN());
    const DeviceFloats row(backend_, nan);
    std::vector<AppendTask> tasks;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int page = 0; page < pages; ++page) {
        for (int slot = 0; slot < kPageTokens; ++slot) {
          tasks.push_back({.item = layer, .page = page, .slot = slot, .source = 0});
        }
      }
    }
    const std::vector<std::int32_t> layers = {0, 1};
    backend_.call(AppendArgs{.cache = cache_.get(),
                             .tasks = tasks,
                             .item_layer = layers,
                             .source = reinterpret_cast<const std::byte*>(row.data()),
                             .source_stride_bytes = cache_->layout().row_bytes()});
    backend_.synchronize(soon());
  }

  /// Stores `count` tokens of each of `sequences` sequences from `sequence` on.
  void append(int sequence, int sequences, int position, int count, const DeviceFloats& rows) {
    std::vector<AppendTask> tasks;
    for (int s = 0; s < sequences; ++s) {
      for (int i = 0; i < count; ++i) {
        tasks.push_back({.item = 0,
                         .page = page_of(sequence + s, position + i),
                         .slot = (position + i) % kPageTokens,
                         .source = std::int64_t{s} * count + i});
      }
    }
    const std::vector<std::int32_t> layers = {kLayer};
    backend_.call(AppendArgs{.cache = cache_.get(),
                             .tasks = tasks,
                             .item_layer = layers,
                             .source = reinterpret_cast<const std::byte*>(rows.data()),
                             .source_stride_bytes = cache_->layout().row_bytes()});
    const std::vector<float> host = rows.host();
    for (int s = 0; s < sequences; ++s) {
      scatter(host, s, count, shape_.latent_dim(), run_.rows,
              (sequence + s) * golden_.tokens() + position);
    }
  }

  /// Block `index` of `count` records of `width` goes to record `to` of `out`.
  static void scatter(const std::vector<float>& in, std::int64_t index, std::int64_t count,
                      std::int64_t width, std::vector<float>& out, std::int64_t to) {
    std::copy_n(in.begin() + index * count * width, count * width, out.begin() + to * width);
  }

  void prefill(int sequence) {
    const int tokens = golden_.prefill_len;
    const DeviceFloats input(backend_, hidden(sequence, 0, tokens));
    DeviceFloats rows(backend_, std::int64_t{tokens} * shape_.latent_dim());
    layer_.latent_rows(tokens, input.data(), positions_from(0, tokens), rows.data());
    append(sequence, 1, 0, tokens, rows);
    const DeviceFloats output(backend_, std::int64_t{tokens} * shape_.hidden_size);
    layer_.prefill_attention(tokens, input.data(), 0, tokens, rows.data(), output.data());
    const std::vector<float> host = output.host();
    run_.prefill_output.insert(run_.prefill_output.end(), host.begin(), host.end());
  }

  /// Tokens `step` .. `step + count - 1` of every sequence in one call.
  void decode(int step, int count) {
    const int position = golden_.prefill_len + step;
    const std::int64_t records = std::int64_t{golden_.batch} * count;
    std::vector<float> input_host;
    std::vector<std::int64_t> positions;
    for (int b = 0; b < golden_.batch; ++b) {
      const auto part = hidden(b, position, count);
      input_host.insert(input_host.end(), part.begin(), part.end());
      for (int i = 0; i < count; ++i) positions.push_back(position + i);
    }
    const DeviceFloats input(backend_, input_host);
    const DeviceFloats queries(backend_, records * heads() * shape_.latent_dim());
    const DeviceFloats rows(backend_, records * shape_.latent_dim());
    layer_.project(records, input.data(), positions, queries.data(), rows.data());
    append(0, golden_.batch, position, count, rows);
    const DeviceFloats states = attend(position, count, queries);
    const DeviceFloats output(backend_, records * shape_.hidden_size);
    layer_.output(records, states.data(), output.data());
    keep(step, count, queries, states, output);
  }

  /// Leaves of one page each, merged in the order of their indices into records [0, batch * count).
  DeviceFloats attend(int position, int count, const DeviceFloats& queries) {
    const StateShape state{.heads = shape_.num_attention_heads, .width = shape_.kv_lora_rank};
    const std::int64_t records = std::int64_t{golden_.batch} * count;
    const int length = position + count;
    const int leaves = (length + kPageTokens - 1) / kPageTokens;
    DeviceFloats states(backend_,
                        leaves * records * static_cast<std::int64_t>(state.record_floats()));
    std::vector<LeafTask> tasks;
    for (int leaf = 0; leaf < leaves; ++leaf) {
      for (int b = 0; b < golden_.batch; ++b) {
        tasks.push_back({.item = 0,
                         .tokens = count,
                         .rows = std::min(kPageTokens, length - leaf * kPageTokens),
                         .first_page = b * sequence_pages_ + leaf,
                         .leaf_begin = std::int64_t{leaf} * kPageTokens,
                         .query_position = position,
                         .query = std::int64_t{b} * count,
                         .state = leaf * records + std::int64_t{b} * count});
      }
    }
    const std::vector<std::int32_t> layers = {kLayer};
    backend_.call(
        AttendArgs{.cache = cache_.get(),
                   .tasks = tasks,
                   .block_table = block_table_,
                   .item_layer = layers,
                   .queries = reinterpret_cast<const std::byte*>(queries.data()),
                   .query_stride_bytes =
                       static_cast<std::size_t>(heads() * shape_.latent_dim()) * sizeof(float),
                   .query_dtype = DType::kF32,
                   .heads = shape_.num_attention_heads,
                   .softmax_scale = static_cast<float>(shape_.softmax_scale()),
                   .states = states.data()});
    for (int leaf = 1; leaf < leaves; ++leaf) {
      const MergeOp op{.dst = 0,
                       .left = 0,
                       .right = leaf * records,
                       .tokens = static_cast<std::int32_t>(records)};
      backend_.call(MergeArgs{.ops = {&op, 1}, .shape = state, .states = states.data()});
    }
    return states;  // the first `records` of them are the merged ones
  }

  void keep(int step, int count, const DeviceFloats& queries, const DeviceFloats& states,
            const DeviceFloats& output) {
    const std::int64_t latent_width = heads() * shape_.kv_lora_rank;
    const std::vector<float> state_host = states.host();
    for (int b = 0; b < golden_.batch; ++b) {
      const int to = b * golden_.decode_steps + step;
      scatter(queries.host(), b, count, heads() * shape_.latent_dim(), run_.decode_query, to);
      scatter(output.host(), b, count, shape_.hidden_size, run_.decode_output, to);
      for (int i = 0; i < count; ++i) {
        const auto record =
            state_host.begin() + (std::int64_t{b} * count + i) * (latent_width + heads());
        std::copy_n(record, latent_width, run_.decode_latent.begin() + (to + i) * latent_width);
        std::copy_n(record + latent_width, heads(), run_.decode_lse.begin() + (to + i) * heads());
      }
    }
  }

  Backend& backend_;
  const GoldenCase& golden_;
  LayerRunOptions options_;
  const ModelShape& shape_;
  MlaLayer layer_;
  int sequence_pages_;
  std::unique_ptr<Cache> cache_;
  std::vector<std::int32_t> block_table_;  // [batch, sequence_pages]
  LayerRun run_;
};

}  // namespace

DeviceFloats::DeviceFloats(Backend& backend, std::int64_t count)
    : backend_(&backend),
      count_(count),
      buffer_(backend.allocate(static_cast<std::size_t>(count) * sizeof(float))) {}

DeviceFloats::DeviceFloats(Backend& backend, std::span<const float> values)
    : DeviceFloats(backend, static_cast<std::int64_t>(values.size())) {
  backend.upload(buffer_->data(), std::as_bytes(values));
}

std::vector<float> DeviceFloats::host() const {
  std::vector<float> values(static_cast<std::size_t>(count_));
  backend_->synchronize(soon());
  backend_->download(std::as_writable_bytes(std::span(values)), buffer_->data());
  return values;
}

LayerRun run_layer(Backend& backend, const GoldenCase& golden, const LayerRunOptions& options) {
  return Runner(backend, golden, options).run();
}

}  // namespace tributary::test
