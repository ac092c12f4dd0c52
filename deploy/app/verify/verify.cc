#include "deploy/app/verify/verify.h"

#include <chrono>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/pool_shape.h"
#include "core/pool/gather_all.h"
#include "core/pool/pool_worker.h"
#include "core/reference/golden_case.h"
#include "core/sequencer/sequencer.h"
#include "deploy/app/golden/golden_client.h"
#include "deploy/app/golden/golden_judge.h"
#include "deploy/runtime/device.h"
#include "deploy/runtime/run_workers.h"

namespace tributary {
namespace {

/// Adds up the rows of all ranks, so that each has the whole: every element was written by one rank
/// and is zero elsewhere.
void sum_over_ranks(Communicator& communicator, std::vector<float>& values) {
  std::vector<float> all;
  gather_all(communicator, std::span<const float>(values), all,
             Deadline::after(std::chrono::minutes(5)))
      .throw_if_error();
  std::fill(values.begin(), values.end(), 0.0F);
  for (std::size_t i = 0; i < all.size(); ++i) values[i % values.size()] += all[i];
}

/// Rank 0's part: runs all sequences of the case at once, one token per step.
void lead(const GoldenCase& golden, const VerifyOptions& options, int workers, std::int32_t pages,
          Worker& worker) {
  Sequencer sequencer(
      {.placement = {.workers = workers, .model = default_cost_model(options.leaf_tokens)},
       .pages_per_worker = pages,
       .incarnation = 1});
  std::vector<Sequencer::StepRequest> step;
  for (int entry = 0; entry < golden.batch; ++entry) {
    const auto id = sequencer.admit({.prompt_tokens = golden.prefill_len,
                                     .max_new_tokens = golden.decode_steps,
                                     .spread = SpreadPolicy::kAll},
                                    {.tag = entry});
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
                  const WorkerDevice& device, Communicator& communicator,
                  std::vector<VerifyRow>& rows) {
  const AttentionShape shape =
      attention_shape(mla_shape(golden.shape), group.row_format, options.query_dtype);
  // Every worker has room for all sequences.
  const auto pages =
      static_cast<std::int32_t>(golden.batch * ceil_div(golden.tokens(), kPageTokens));
  GoldenLayer layer(golden, shape, *device.backend);
  GoldenClient client(layer);
  WorkerConfig config{.attention = shape,
                      .layers = 1,
                      .pages = pages,
                      .leaf_tokens = options.leaf_tokens,
                      .exchange = Exchange::kAuto};
  Worker worker(config, *device.backend, communicator, client, device.exchange.get());
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
    layer.prefill(entry);
  }
  GoldenResults& results = layer.results();
  for (auto* values : results.all()) sum_over_ranks(communicator, *values);

  judge_all(golden, group, shape, results, rows);
}

}  // namespace

std::vector<VerifyRow> verify(const VerifyOptions& options, Communicator& communicator) {
  const int threads = options.threads > 0 ? options.threads : threads_per_worker(communicator);
  const WorkerDevice device =
      open_device(options.backend, threads, communicator, options.backend_options);
  std::vector<VerifyRow> rows;
  for (const auto& file : options.files) {
    const GoldenCase golden = load_golden_case(file);
    for (const GoldenGroup& group : golden.groups) {
      verify_group(golden, group, options, device, communicator, rows);
    }
  }
  return rows;
}

}  // namespace tributary
