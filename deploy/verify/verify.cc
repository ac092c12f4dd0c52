#include "deploy/verify/verify.h"

#include <fmt/format.h>

#include <chrono>

#include "core/base/error.h"
#include "core/pool/sequencer.h"
#include "core/pool/worker.h"
#include "core/reference/error_measures.h"
#include "core/reference/golden_case.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/launch.h"
#include "deploy/verify/golden_client.h"

namespace tributary {
namespace {

/// Bounds on the relative Frobenius error (lse: on the absolute error) of a group. They are those
/// that the vectors' own README suggests for fp32 arithmetic: some 20 times what was seen between
/// correct programs. The rope part of a row is judged with the outputs, since its angles are.
struct Bounds {
  double output = 0;
  double row = 0;  // worst row of an output
  double cache_kv = 0;
  double lse = 0;
};

Bounds bounds_of(const GoldenGroup& group, DType query_dtype) {
  const bool bf16_rows = group.row_dtype == DType::kBF16;
  Bounds bounds = bf16_rows ? Bounds{5e-4, 2e-3, 5e-4, 5e-4} : Bounds{3e-5, 1e-4, 1e-6, 5e-5};
  if (query_dtype == DType::kBF16) {
    // Rounding a query to 8 bits moves a score by up to 2^-8 of its terms.
    bounds.output = 1.5e-2;
    bounds.row = 5e-2;
    bounds.lse = 1.5e-2;
  }
  return bounds;
}

/// The rows of every rank added up, so that each has the whole: every element was written by one
/// rank and is zero elsewhere.
void sum_over_ranks(Communicator& communicator, std::vector<float>& values) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<float> all(values.size() * ranks);
  const std::vector<std::size_t> counts(ranks, values.size() * sizeof(float));
  communicator
      .all_gather(std::as_bytes(std::span(values)), std::as_writable_bytes(std::span(all)), counts,
                  Deadline::after(std::chrono::minutes(5)))
      .throw_if_error();
  std::fill(values.begin(), values.end(), 0.0F);
  for (std::size_t i = 0; i < all.size(); ++i) values[i % values.size()] += all[i];
}

/// Columns [begin, end) of rows of `width`.
std::vector<float> columns(const std::vector<float>& values, std::size_t width, std::size_t begin,
                           std::size_t end) {
  std::vector<float> result;
  for (std::size_t row = 0; row + width <= values.size(); row += width) {
    result.insert(result.end(), values.begin() + static_cast<std::ptrdiff_t>(row + begin),
                  values.begin() + static_cast<std::ptrdiff_t>(row + end));
  }
  return result;
}

class Judge {
 public:
  Judge(const GoldenCase& golden, const GoldenGroup& group, std::vector<VerifyRow>& rows)
      : golden_(golden), group_(group), rows_(rows) {}

  void relative(const std::string& tensor, const std::vector<float>& got,
                const std::vector<double>& expected, int width, double bound, double row_bound) {
    const TensorError error = measure_error(got, expected, width);
    rows_.push_back({golden_.name, group_.name, tensor, error.relative_frobenius, error.worst_row,
                     bound, row_bound});
  }
  void absolute(const std::string& tensor, const std::vector<float>& got,
                const std::vector<double>& expected, double bound) {
    const TensorError error = measure_error(got, expected, 1);
    rows_.push_back(
        {golden_.name, group_.name, tensor, error.max_absolute, error.max_absolute, bound, bound});
  }

 private:
  const GoldenCase& golden_;
  const GoldenGroup& group_;
  std::vector<VerifyRow>& rows_;
};

/// Rank 0's part: all sequences of the case at once, one token a step.
void lead(const GoldenCase& golden, const VerifyOptions& options, int workers, std::int32_t pages,
          Worker& worker) {
  Sequencer sequencer({.placement = {.workers = workers,
                                     .leaf_tokens = options.leaf_tokens,
                                     .costs = {},
                                     .extent_share = PlacementConfig{}.extent_share},
                       .pages_per_worker = pages,
                       .incarnation = 1});
  std::vector<Sequencer::StepRequest> step;
  for (int entry = 0; entry < golden.batch; ++entry) {
    const auto id = sequencer.admit({.tag = entry,
                                     .prompt_tokens = golden.prefill_len,
                                     .max_new_tokens = golden.decode_steps,
                                     .spread = SpreadPolicy::kAll});
    if (!id) fail(ErrorCode::kInternal, "no room for batch entry {} of {}", entry, golden.name);
    step.push_back({*id, 1});
  }
  const std::vector<std::int32_t> accepted(step.size(), 1);
  for (int d = 0; d < golden.decode_steps; ++d) {
    sequencer.begin_step(step);
    worker.lead(sequencer.take_order()).status.throw_if_error();
    sequencer.commit_step(accepted);
  }
  for (const auto& item : step) sequencer.free(item.id);
  Order last = sequencer.take_order();
  last.stop = true;
  worker.lead(last).status.throw_if_error();
}

void verify_group(const GoldenCase& golden, const GoldenGroup& group, const VerifyOptions& options,
                  Backend& backend, Communicator& communicator, std::vector<VerifyRow>& rows) {
  const ModelShape& model = golden.shape;
  const AttentionShape shape{.heads = model.num_attention_heads,
                             .kv_lora_rank = model.kv_lora_rank,
                             .qk_rope_head_dim = model.qk_rope_head_dim,
                             .row_dtype = group.row_dtype,
                             .query_dtype = options.query_dtype,
                             .softmax_scale = static_cast<float>(model.softmax_scale())};
  // Room for all sequences on any one worker.
  const auto pages =
      static_cast<std::int32_t>(golden.batch * ceil_div(golden.tokens(), kPageTokens));
  GoldenClient client(golden, shape, backend);
  Worker worker({.attention = shape,
                 .layers = 1,
                 .pages = pages,
                 .leaf_tokens = options.leaf_tokens,
                 .exchange = Exchange::kAuto},
                backend, communicator, client);
  if (communicator.rank() == 0) {
    lead(golden, options, communicator.size(), pages, worker);
  } else {
    for (bool stop = false; !stop;) {
      const RoundReport round = worker.follow();
      round.status.throw_if_error();
      stop = round.stop;
    }
  }
  for (int entry = communicator.rank(); entry < golden.batch; entry += communicator.size()) {
    client.prefill(entry);
  }
  GoldenResults& results = client.results();
  for (auto* values : results.all()) sum_over_ranks(communicator, *values);

  const Bounds bounds = bounds_of(group, options.query_dtype);
  const auto c = static_cast<std::size_t>(model.kv_lora_rank);
  const auto width = static_cast<std::size_t>(model.latent_dim());
  Judge judge(golden, group, rows);
  // Rounding queries does not touch what is computed before the attention over the pool.
  const Bounds exact = bounds_of(group, DType::kF32);
  judge.relative("prefill.output", results.prefill_output, group.prefill_output, model.hidden_size,
                 exact.output, exact.row);
  judge.relative("cache.kv", columns(results.cache, width, 0, c), group.cache_kv,
                 model.kv_lora_rank, exact.cache_kv, exact.row);
  judge.relative("cache.pe", columns(results.cache, width, c, width), group.cache_pe,
                 model.qk_rope_head_dim, exact.output, exact.row);
  judge.relative("decode.q_nope_absorbed", columns(results.query, width, 0, c),
                 group.decode_q_absorbed, model.kv_lora_rank, exact.output, exact.row);
  judge.relative("decode.q_pe", columns(results.query, width, c, width), group.decode_q_pe,
                 model.qk_rope_head_dim, exact.output, exact.row);
  judge.relative("decode.latent", results.latent, group.decode_latent,
                 model.num_attention_heads * model.kv_lora_rank, bounds.output, bounds.row);
  judge.absolute("decode.lse", results.lse, group.decode_lse, bounds.lse);
  judge.relative("decode.output", results.decode_output, group.decode_output, model.hidden_size,
                 bounds.output, bounds.row);
}

}  // namespace

std::vector<VerifyRow> verify(const VerifyOptions& options, Communicator& communicator) {
  const int threads = options.threads > 0 ? options.threads : threads_per_worker(communicator);
  const auto backend = make_backend(options.backend, threads);
  std::vector<VerifyRow> rows;
  for (const auto& file : options.files) {
    const GoldenCase golden = load_golden_case(file);
    for (const GoldenGroup& group : golden.groups) {
      verify_group(golden, group, options, *backend, communicator, rows);
    }
  }
  return rows;
}

std::string to_text(const std::vector<VerifyRow>& rows) {
  std::string text = fmt::format("{:<10}{:<11}{:<24}{:>12}{:>12}{:>12}\n", "file", "group",
                                 "tensor", "error", "worst row", "bound");
  for (const VerifyRow& row : rows) {
    text +=
        fmt::format("{:<10}{:<11}{:<24}{:>12.2e}{:>12.2e}{:>12.2e}{}\n", row.file, row.group,
                    row.tensor, row.error, row.worst_row, row.bound, row.ok() ? "" : "  TOO LARGE");
  }
  return text;
}

}  // namespace tributary
