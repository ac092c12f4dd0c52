#include "deploy/app/bench/step_case.h"

#include <chrono>
#include <span>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "deploy/app/bench/prompt_filler.h"

namespace tributary::bench {
namespace {

/// Every worker has room for all sequences, so placement alone decides where they lie.
std::int32_t pages_of(const StepCaseConfig& config) {
  return static_cast<std::int32_t>(std::int64_t{config.batch} *
                                   ceil_div(config.context, kPageTokens));
}

WorkerConfig worker_config(const StepCaseConfig& config, int workers) {
  return {.attention = config.attention,
          .layers = config.pool_layers,
          .pages = pages_of(config),
          .leaf_tokens = config.leaf_tokens,
          .costs = config.costs,
          .workers_per_node = workers};
}

}  // namespace

AttentionShape attention_shape(int heads, RowFormat format) {
  return {.heads = heads,
          .kv_lora_rank = 512,
          .qk_rope_head_dim = 64,
          .row_format = format,
          .query_dtype = DType::kBF16,
          .softmax_scale = 0.135F};
}

StepCase::StepCase(const StepCaseConfig& config, Backend& backend, Communicator& communicator,
                   Communicator* exchange)
    : communicator_(communicator),
      layers_(config.layers),
      pool_layers_(config.pool_layers),
      client_(config.attention, backend),
      ingest_(communicator.rank(), config.pool_layers, config.leaf_tokens),
      worker_(worker_config(config, communicator.size()), backend, communicator, client_, ingest_,
              exchange),
      sequencer_({.placement = {.workers = communicator.size(),
                                .model = worker_config(config, communicator.size()).cost_model()},
                  .pages_per_worker = pages_of(config),
                  .incarnation = 1}) {
  for (int i = 0; i < config.batch; ++i) {
    const auto id = sequencer_.sequences().admit(
        {.prompt_tokens = config.context - 1, .max_new_tokens = 1, .spread = SpreadPolicy::kAuto},
        {.tag = i});
    step_.push_back({id.value(), 1});
  }
  worker_.perform(sequencer_.take_order()).status.throw_if_error();
  for (const StepItem& item : step_) {
    fill_prompt(worker_.table().at(item.id), communicator.rank(), config.pool_layers,
                config.leaf_tokens, ingest_, backend, worker_.cache(),
                [&](int /*layer*/, std::int64_t /*begin*/, std::int64_t count, std::byte* rows) {
                  client_.write_rows(count, rows);
                });
  }
}

bool StepCase::share(bool more) {
  communicator_
      .broadcast(std::as_writable_bytes(std::span(&more, 1)), 0,
                 Deadline::after(std::chrono::minutes(1)))
      .throw_if_error();
  return more;
}

RoundReport StepCase::step() {
  sequencer_.steps().open(step_);
  RoundReport sum;
  for (int i = 0; i < layers_; ++i) {
    for (StepItem& item : step_) item.layer = next_layer_;
    next_layer_ = (next_layer_ + 1) % pool_layers_;
    sequencer_.steps().order_round(step_);
    RoundReport round = worker_.perform(sequencer_.take_order());
    round.status.throw_if_error();
    for (std::size_t p = 0; p < kPhases; ++p) round.phase_us[p] += sum.phase_us[p];
    sum = std::move(round);
  }
  for (const StepItem& item : step_) sequencer_.steps().commit(item.id, 0);
  return sum;
}

RoundReport StepCase::run() {
  (void)share(true);
  return step();
}

void StepCase::stop() {
  (void)share(false);
}

void StepCase::follow() {
  while (share(false)) (void)step();
}

}  // namespace tributary::bench
