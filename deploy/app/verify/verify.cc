#include "deploy/app/verify/verify.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/mla_shape.h"
#include "core/reference/golden_case.h"
#include "core/reference/row_format_error.h"
#include "deploy/app/golden/golden_judge.h"
#include "deploy/app/golden/golden_prompt.h"
#include "deploy/app/meet/meet_service.h"
#include "deploy/local/hosted_pool.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/cores.h"
#include "deploy/service/client/scoped_sequences.h"

namespace tributary {
namespace {

constexpr int kSenders = 2;

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

const SequenceHandle& admit(TierClient& client, std::int64_t prompt_tokens,
                            std::int64_t max_new_tokens, const VerifyOptions& options,
                            ScopedSequences& sequences) {
  return sequences.add(client.admit_waiting(
      {.prompt_tokens = prompt_tokens,
       .max_new_tokens = max_new_tokens,
       .spread = SpreadPolicy::kAll,
       .idempotency_key = {}},
      Deadline::after(std::chrono::milliseconds(options.service.call_timeout_ms))));
}

/// One token of each.
void commit(TierClient& client, ScopedSequences& sequences) {
  std::vector<SequenceHandle*> all;
  for (SequenceHandle& sequence : sequences.all()) all.push_back(&sequence);
  client.commit(all, std::vector<std::int32_t>(all.size(), 1));
}

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
    admit_all(options, sequences);
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
      commit(client_, sequences);
    }
    sequences.free();
    for (int entry = 0; entry < golden_.batch; ++entry) layer_.prefill(entry);
    return layer_.results();
  }

  /// Sends hidden states and returns outputs [B, D, hidden_size].
  std::vector<float> forward(const VerifyOptions& options) {
    ScopedSequences sequences(client_);
    admit_all(options, sequences);
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
      commit(client_, sequences);
    }
    sequences.free();
    return output;
  }

 private:
  void admit_all(const VerifyOptions& options, ScopedSequences& sequences) {
    for (int entry = 0; entry < golden_.batch; ++entry) {
      push_prompt(client_,
                  admit(client_, golden_.prefill_len, golden_.decode_steps, options, sequences),
                  prompt_rows(golden_, layer_, entry), kSenders);
    }
  }

  const GoldenCase& golden_;
  PoolShape shape_;
  Backend& backend_;
  TierClient& client_;
  GoldenLayer layer_;
  std::unique_ptr<Buffer> record_, state_;
};

/// The shape of the pool that gets such sequences.
PoolShape pool_shape(const auto& golden, const VerifyOptions& options, TierClient& client) {
  ScopedSequences probe(client);
  return admit(client, golden.prefill_len, golden.decode_steps, options, probe).shape;
}

std::unique_ptr<Backend> client_backend(const VerifyOptions& options) {
  const int threads = options.threads > 0 ? options.threads : threads_of_process();
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

/// Of a pool of the shape or the model of `golden`.
WorkerOptions pool_options(const auto& golden, const MlaShape& shape, RowFormat row_format,
                           const VerifyOptions& options) {
  WorkerOptions pool;
  pool.listen = options.listen;
  pool.advertise = options.advertise;
  pool.backend = options.backend;
  pool.threads = options.threads;
  pool.backend_options = options.backend_options;
  pool.row_format = row_format;
  pool.query_dtype = options.query_dtype;
  pool.leaf_tokens = options.leaf_tokens;
  pool.failure_timeout_ms = 60'000;
  // Room for all sequences on any one worker, and half a page for the rounding of this number.
  const auto pages = static_cast<double>(golden.batch * ceil_div(golden.tokens(), kPageTokens));
  const std::size_t row_bytes = attention_shape(shape, row_format, options.query_dtype).row_bytes();
  pool.kv_gib = (pages + 0.5) * static_cast<double>(row_bytes * kPageTokens) / 0x1p30;
  return pool;
}

/// Attention to selected rows, or to all, on the pool of `client`: the rows and queries of the
/// file.
void verify_selection(const GoldenSelection& golden, const VerifyOptions& options,
                      const PoolShape& shape, TierClient& client, Verification& result) {
  const auto steps = size(golden.decode_steps);
  const RowLayout row = shape.row();
  const RowLayout query =
      plain_row(std::int64_t{golden.heads} * golden.latent_dim(), shape.query_dtype);
  const auto batch = size(golden.batch);
  ScopedSequences sequences(client);
  std::vector<std::byte> rows = golden.stored;
  if (row.format != RowFormat::kFp8DsMla) {
    rows.resize(batch * size(golden.tokens()) * row.bytes());
    row.encode(golden.rows, rows.data());
  }
  std::vector<std::byte> queries(batch * steps * query.bytes());
  query.encode(golden.query, queries.data());
  const auto row_of = [&](std::size_t entry, std::int64_t position) {
    return rows.data() + (entry * size(golden.tokens()) + size(position)) * row.bytes();
  };
  for (std::size_t entry = 0; entry < batch; ++entry) {
    const std::span prompt(row_of(entry, 0), row_of(entry, golden.prefill_len));
    push_prompt(client, admit(client, golden.prefill_len, golden.decode_steps, options, sequences),
                {prompt.begin(), prompt.end()}, kSenders);
  }
  const std::size_t record = shape.state_shape().record_floats();
  std::vector<float> states(batch * steps * record);
  for (std::size_t d = 0; d < steps; ++d) {
    std::vector<LayerItem> items;
    for (std::size_t entry = 0; entry < batch; ++entry) {
      const std::size_t token = entry * steps + d;
      LayerItem& item =
          items.emplace_back(LayerItem{.sequence = &sequences.all()[entry],
                                       .tokens = 1,
                                       .query = {queries.data() + token * query.bytes()},
                                       .row = {row_of(entry, golden.prefill_len + std::int64_t(d))},
                                       .output = &states[token * record]});
      if (shape.topk == 0) continue;
      item.selected = {golden.selected.data() + token * size(golden.topk)};
      item.selected_count = golden.topk;
    }
    client.attend(items, /*layer=*/0);
    commit(client, sequences);
  }
  sequences.free();
  std::vector<float> latent;
  std::vector<float> lse;
  const auto values = static_cast<std::ptrdiff_t>(golden.heads) * golden.kv_lora_rank;
  for (auto at = states.begin(); at != states.end(); at += static_cast<std::ptrdiff_t>(record)) {
    latent.insert(latent.end(), at, at + values);
    lse.insert(lse.end(), at + values, at + values + golden.heads);
  }
  judge_selection(golden, shape, latent, lse, result.rows);
}

void verify_through_service(const GoldenSelection& golden, const VerifyOptions& options,
                            TierClient& client, Verification& result) {
  const PoolShape shape = pool_shape(golden, options, client);
  check_shape(golden, shape);
  verify_selection(golden, options, shape, client, result);
}

void verify_through_service(const GoldenCase& golden, const VerifyOptions& options,
                            Backend& backend, TierClient& client, Verification& result) {
  const PoolShape shape = pool_shape(golden, options, client);
  check_shape(golden, shape);
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

/// Selected rows of bf16, then those of the file as they are, selected ones and all.
void verify_on_own_pools(const GoldenSelection& golden, const VerifyOptions& options,
                         Communicator& communicator, const std::shared_ptr<LocalNetwork>& network,
                         Verification& result) {
  struct Rows {
    RowFormat format;
    int topk;
  };
  for (const Rows& rows :
       {Rows{RowFormat::kBF16, golden.topk}, Rows{RowFormat::kFp8DsMla, golden.topk},
        Rows{RowFormat::kFp8DsMla, 0}}) {
    MlaShape shape = mla_shape(golden);
    shape.topk = rows.topk;
    const Status served = status_of([&] {
      static_cast<void>(client_backend(options)->make_cache(
          {1, 1, golden.kv_lora_rank, golden.qk_rope_head_dim, rows.format}));
    });
    if (served.code() == ErrorCode::kUnsupported) {
      result.skipped.push_back(fmt::format("{}: {}", golden.name, served.message()));
      continue;
    }
    WorkerOptions pool = pool_options(golden, shape, rows.format, options);
    pool.given_shape = shape;
    const auto use = [&](const HostedPool& hosted) {
      verify_selection(golden, options, hosted.card().shape, *hosted.make_client(), result);
    };
    host_pool(std::move(pool), communicator, network, {.run = use});
  }
}

}  // namespace

std::string row_errors_text(RowFormat format) {
  struct Kind {
    double deviation, outliers;
  };
  std::string text = fmt::format(
      "{} beside bf16: 16 heads, 4,096 rows of 512 + 64 normal latents, k_pe 4 times as large\n",
      row_format_name(format));
  for (const Kind& kind : {Kind{1, 1}, Kind{2, 1}, Kind{8, 1}, Kind{1, 20}}) {
    const RowFormatError error = row_format_error(format, kind.deviation, kind.outliers);
    text += fmt::format(
        "scores of deviation {}{}: o {:.4f} relative ({:.4f} worst head), lse {:.4f}\n",
        kind.deviation,
        kind.outliers > 1 ? fmt::format(", 8 columns {} times as large", kind.outliers) : "",
        error.o, error.worst_o, error.lse);
  }
  return text;
}

Verification verify(const VerifyOptions& options, Communicator& communicator,
                    const std::shared_ptr<LocalNetwork>& network) {
  Verification result;
  for (const auto& file : options.files) {
    if (const auto selection = find_golden_selection(file)) {
      verify_on_own_pools(*selection, options, communicator, network, result);
      continue;
    }
    const GoldenCase golden = load_golden_case(file);
    for (const GoldenGroup& group : golden.groups) {
      const auto use = [&](const HostedPool& hosted) {
        verify_group(golden, group, options, hosted.card().shape, /*forward=*/false,
                     *client_backend(options), *hosted.make_client(), result);
      };
      WorkerOptions pool = pool_options(golden, mla_shape(golden.shape), group.row_format, options);
      pool.model = file;
      host_pool(std::move(pool), communicator, network, {.run = use});
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
      with_service([&] { verify_through_service(*selection, options, client, result); });
      continue;
    }
    const GoldenCase golden = load_golden_case(file);
    with_service([&] { verify_through_service(golden, options, *backend, client, result); });
  }
  return result;
}

}  // namespace tributary
