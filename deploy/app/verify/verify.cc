#include "deploy/app/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/mla_shape.h"
#include "core/plan/merge_tree.h"
#include "core/reference/golden_case.h"
#include "deploy/app/golden/golden_judge.h"
#include "deploy/app/golden/golden_prompt.h"
#include "deploy/app/meet/meet_service.h"
#include "deploy/local/hosted_pool.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/scoped_sequences.h"

namespace tributary {
namespace {

constexpr int kSenders = 2;

/// One golden group on one pool.
class GroupRun {
 public:
  GroupRun(const GoldenCase& golden, const PoolShape& shape, Backend& backend, TierClient& client)
      : golden_(golden),
        shape_(shape),
        backend_(backend),
        client_(client),
        layer_(golden, shape_, backend),
        record_(backend.allocate(shape_.token_record_bytes())),
        state_(backend.allocate(shape_.state_shape().record_floats() * sizeof(float))) {}

  /// Projects queries and applies outputs here, on the client's side.
  GoldenResults& attend(const VerifyOptions& options) {
    ScopedSequences sequences(client_);
    admit(options, sequences);
    const std::size_t record_bytes = shape_.token_record_bytes();
    const std::size_t state_floats = shape_.state_shape().record_floats();
    const auto batch = static_cast<std::size_t>(golden_.batch);
    std::vector<std::byte> records(batch * record_bytes);
    std::vector<float> states(batch * state_floats);
    for (int d = 0; d < golden_.decode_steps; ++d) {
      const std::int64_t position = golden_.prefill_len + d;
      std::vector<LayerItem> items;
      for (std::size_t entry = 0; entry < batch; ++entry) {
        const std::span record = std::span(records).subspan(entry * record_bytes, record_bytes);
        layer_.write_record(static_cast<std::int64_t>(entry), position, record_->data());
        backend_.download(record, record_->data());
        items.push_back({.sequence = &sequences.all()[entry],
                         .tokens = 1,
                         .query = {record.data()},
                         .row = {record.data() + shape_.query_bytes()},
                         .output = &states[entry * state_floats]});
      }
      client_.attend(items, /*layer=*/0);
      for (std::size_t entry = 0; entry < batch; ++entry) {
        backend_.upload(state_->data(), std::as_bytes(std::span(states).subspan(
                                            entry * state_floats, state_floats)));
        layer_.take_state(static_cast<std::int64_t>(entry), position, state_->as<float>());
      }
      commit(sequences);
    }
    sequences.free();
    for (int entry = 0; entry < golden_.batch; ++entry) layer_.prefill(entry);
    return layer_.results();
  }

  /// Sends hidden states and returns outputs [B, D, hidden_size].
  std::vector<float> forward(const VerifyOptions& options) {
    ScopedSequences sequences(client_);
    admit(options, sequences);
    const auto width = static_cast<std::size_t>(golden_.shape.hidden_size);
    const auto steps = static_cast<std::size_t>(golden_.decode_steps);
    const auto batch = static_cast<std::size_t>(golden_.batch);
    std::vector<float> output(batch * steps * width);
    for (std::size_t d = 0; d < steps; ++d) {
      std::vector<LayerItem> items;
      for (std::size_t entry = 0; entry < batch; ++entry) {
        const auto position = golden_.prefill_len + static_cast<std::int64_t>(d);
        items.push_back(
            {.sequence = &sequences.all()[entry],
             .tokens = 1,
             .query = {layer_.hidden(static_cast<std::int64_t>(entry), position, 1).data()},
             .row = {},
             .output = &output[(entry * steps + d) * width]});
      }
      client_.forward(items, /*layer=*/0);
      commit(sequences);
    }
    sequences.free();
    return output;
  }

 private:
  void admit(const VerifyOptions& options, ScopedSequences& sequences) {
    for (int entry = 0; entry < golden_.batch; ++entry) {
      const SequenceHandle& sequence = sequences.add(client_.admit_waiting(
          {.prompt_tokens = golden_.prefill_len,
           .max_new_tokens = golden_.decode_steps,
           .spread = SpreadPolicy::kAll,
           .idempotency_key = {}},
          Deadline::after(std::chrono::milliseconds(options.service.call_timeout_ms))));
      push_prompt(client_, sequence, prompt_rows(golden_, layer_, entry), kSenders);
    }
  }

  void commit(ScopedSequences& sequences) {
    std::vector<SequenceHandle*> all;
    for (SequenceHandle& sequence : sequences.all()) all.push_back(&sequence);
    client_.commit(all, std::vector<std::int32_t>(all.size(), 1));
  }

  const GoldenCase& golden_;
  PoolShape shape_;
  Backend& backend_;
  TierClient& client_;
  GoldenLayer layer_;
  std::unique_ptr<Buffer> record_, state_;
};

/// The shape of the pool that gets a case's sequences.
PoolShape pool_shape(const GoldenCase& golden, TierClient& client, Deadline deadline) {
  ScopedSequences probe(client);
  const PoolShape shape = probe
                              .add(client.admit_waiting({.prompt_tokens = golden.prefill_len,
                                                         .max_new_tokens = golden.decode_steps,
                                                         .spread = SpreadPolicy::kAuto,
                                                         .idempotency_key = {}},
                                                        deadline))
                              .shape;
  check_shape(golden, shape);
  return shape;
}

std::unique_ptr<Backend> client_backend(const VerifyOptions& options) {
  const int threads = options.threads > 0
                          ? options.threads
                          : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return make_backend(options.backend, threads, options.backend_options);
}

/// One group on the pool of `client`, whose shape is `shape`.
void verify_group(const GoldenCase& golden, const GoldenGroup& group, const VerifyOptions& options,
                  const PoolShape& shape, bool forward, Backend& backend, TierClient& client,
                  Verification& result) {
  GroupRun run(golden, shape, backend, client);
  judge_all(golden, group, shape, run.attend(options), result.rows);
  if (forward) judge_forward(golden, group, shape, run.forward(options), result.rows);
}

WorkerOptions pool_options(const GoldenCase& golden, const GoldenGroup& group,
                           const std::filesystem::path& file, const VerifyOptions& options) {
  WorkerOptions pool;
  pool.model = file;
  pool.listen = options.listen;
  pool.advertise = options.advertise;
  pool.backend = options.backend;
  pool.threads = options.threads;
  pool.backend_options = options.backend_options;
  pool.row_format = group.row_format;
  pool.query_dtype = options.query_dtype;
  pool.leaf_tokens = options.leaf_tokens;
  pool.round_timeout_ms = 60'000;
  // Room for all sequences on any one worker, and half a page for the rounding of this number.
  const auto pages = static_cast<double>(golden.batch * ceil_div(golden.tokens(), kPageTokens));
  const std::size_t row_bytes =
      attention_shape(mla_shape(golden.shape), group.row_format, options.query_dtype).row_bytes();
  pool.kv_gib = (pages + 0.5) * static_cast<double>(row_bytes * kPageTokens) / 0x1p30;
  return pool;
}

/// A decode kernel over selected rows, in leaves of `leaf_tokens` that are merged, on the rows and
/// queries of the file; without a pool, which attends to all rows.
void verify_selection(const GoldenSelection& golden, const VerifyOptions& options,
                      Verification& result) {
  const auto backend = client_backend(options);
  const RowLayout row{RowFormat::kBF16, golden.kv_lora_rank, golden.qk_rope_head_dim};
  const StateShape shape{golden.heads, golden.kv_lora_rank};
  const std::int64_t pages = ceil_div(golden.tokens(), kPageTokens);
  const auto cache = backend->make_cache({.layers = 1,
                                          .pages = static_cast<int>(pages),
                                          .kv_lora_rank = golden.kv_lora_rank,
                                          .qk_rope_head_dim = golden.qk_rope_head_dim,
                                          .row_format = row.format});
  std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
  std::iota(table.begin(), table.end(), 0);
  const auto steps = static_cast<std::int64_t>(golden.decode_steps);
  const std::int64_t leaves = ceil_div(golden.tokens(), options.leaf_tokens);
  const auto on_device = [&](std::span<const std::byte> bytes) {
    auto buffer = backend->allocate(bytes.size());
    backend->upload(buffer->data(), bytes);
    return buffer;
  };
  const auto states =
      backend->allocate(static_cast<std::size_t>(leaves * steps) * shape.record_bytes());
  std::vector<float> latent;
  std::vector<float> lse;
  const auto part = [&](const auto& values, int entry) {
    const std::size_t count = values.size() / static_cast<std::size_t>(golden.batch);
    return std::span(values).subspan(static_cast<std::size_t>(entry) * count, count);
  };
  for (int entry = 0; entry < golden.batch; ++entry) {
    for (std::int64_t page = 0; page < pages; ++page) {
      const auto begin = static_cast<std::size_t>(page * kPageTokens) * row.values();
      const std::span all = part(golden.rows, entry);
      const std::span values =
          all.subspan(begin, std::min(kPageTokens * row.values(), all.size() - begin));
      std::vector<std::byte> rows(values.size() / row.values() * row.bytes());
      row.encode(values, rows.data());
      backend->store_rows(*cache, 0, static_cast<std::int32_t>(page), 0, rows);
    }
    const RowLayout query =
        plain_row(std::int64_t{golden.heads} * golden.latent_dim(), options.query_dtype);
    std::vector<std::byte> records(static_cast<std::size_t>(steps) * query.bytes());
    query.encode(part(golden.query, entry), records.data());
    const auto queries = on_device(records);
    const auto selected = on_device(std::as_bytes(part(golden.selected, entry)));
    std::vector<LeafTask> tasks;
    std::vector<NodeState> nodes;
    for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
      const std::int64_t begin = leaf * options.leaf_tokens;
      nodes.push_back({{0, static_cast<std::int32_t>(leaf)}, leaf * steps});
      tasks.push_back({.tokens = golden.decode_steps,
                       .rows = static_cast<std::int32_t>(
                           std::min<std::int64_t>(options.leaf_tokens, golden.tokens() - begin)),
                       .first_page = static_cast<std::int32_t>(begin / kPageTokens),
                       .leaf_begin = begin,
                       .query_position = golden.prefill_len,
                       .state = leaf * steps});
    }
    const std::int32_t layer = 0;
    backend->call(AttendArgs{
        .cache = cache.get(),
        .tasks = tasks,
        .block_table = table,
        .item_layer = std::span(&layer, 1),
        .queries = queries->data(),
        .query_stride_bytes = query.bytes(),
        .query_dtype = options.query_dtype,
        .heads = golden.heads,
        .softmax_scale = static_cast<float>(golden.softmax_scale),
        .states = states->as<float>(),
        .selected = {.data = selected->as<std::int32_t>(),
                     .stride_bytes = static_cast<std::size_t>(golden.topk) * sizeof(std::int32_t),
                     .most = golden.topk}});
    MergeSchedule merges;
    merges.add(nodes, tree_height(leaves), 0, golden.decode_steps);
    for (const std::vector<MergeOp>& ops : merges.levels()) {
      backend->call(MergeArgs{.ops = ops,
                              .shape = shape,
                              .states = states->as<float>(),
                              .levels = static_cast<int>(merges.levels().size())});
    }
    std::vector<float> records_out(static_cast<std::size_t>(steps) * shape.record_floats());
    backend->download(std::as_writable_bytes(std::span(records_out)), states->data());
    const auto values = static_cast<std::ptrdiff_t>(golden.heads) * golden.kv_lora_rank;
    for (auto at = records_out.begin(); at != records_out.end();
         at += static_cast<std::ptrdiff_t>(shape.record_floats())) {
      latent.insert(latent.end(), at, at + values);
      lse.insert(lse.end(), at + values, at + values + golden.heads);
    }
  }
  judge_selection(golden, options.query_dtype, latent, lse, result.rows);
}

void verify_through_service(const GoldenCase& golden, const VerifyOptions& options,
                            Backend& backend, TierClient& client, Verification& result) {
  const PoolShape shape = pool_shape(
      golden, client, Deadline::after(std::chrono::milliseconds(options.service.call_timeout_ms)));
  for (const GoldenGroup& group : golden.groups) {
    if (group.row_format != shape.row_format) {
      result.skipped.push_back(fmt::format("{} {}: the pool's rows are {}", golden.name, group.name,
                                           row_format_name(shape.row_format)));
      continue;
    }
    verify_group(golden, group, options, shape, shape.v_head_dim > 0 && !options.attend_only,
                 backend, client, result);
  }
}

}  // namespace

Verification verify(const VerifyOptions& options, Communicator& communicator,
                    const std::shared_ptr<LocalNetwork>& network) {
  Verification result;
  for (const auto& file : options.files) {
    if (const auto selection = find_golden_selection(file)) {
      if (communicator.rank() == 0) verify_selection(*selection, options, result);
      continue;
    }
    const GoldenCase golden = load_golden_case(file);
    for (const GoldenGroup& group : golden.groups) {
      const auto use = [&](const HostedPool& pool) {
        verify_group(golden, group, options, pool.card().shape, /*forward=*/false,
                     *client_backend(options), *pool.make_client(), result);
      };
      host_pool(pool_options(golden, group, file, options), communicator, network, {.run = use});
    }
  }
  return result;
}

Verification verify_service(const VerifyOptions& options) {
  meet_service(options.service);
  const auto backend = client_backend(options);
  TierClient client(client_config(options.service));
  Verification result;
  for (const auto& file : options.files) {
    if (const auto selection = find_golden_selection(file)) {
      result.skipped.push_back(fmt::format("{} fp8: pools attend to all rows", selection->name));
      continue;
    }
    const GoldenCase golden = load_golden_case(file);
    with_service([&] { verify_through_service(golden, options, *backend, client, result); });
  }
  return result;
}

}  // namespace tributary
