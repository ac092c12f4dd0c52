#include "deploy/app/bench/step_case.h"

#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"

namespace tributary::bench {
namespace {

/// Every worker has room for all sequences, so placement alone decides where they lie.
std::int32_t pages_of(const StepCaseConfig& config) {
  return static_cast<std::int32_t>(std::int64_t{config.batch} *
                                   ceil_div(config.context, kPageTokens));
}

WorkerConfig worker_config(const StepCaseConfig& config, int workers) {
  return {.attention = config.attention,
          .layers = config.layers,
          .pages = pages_of(config),
          .leaf_tokens = config.leaf_tokens,
          .exchange = config.exchange,
          .costs = config.costs,
          .workers_per_node = workers};
}

}  // namespace

AttentionShape attention_shape(int heads) {
  return {.heads = heads,
          .kv_lora_rank = 512,
          .qk_rope_head_dim = 64,
          .row_format = RowFormat::kBF16,
          .query_dtype = DType::kBF16,
          .softmax_scale = 0.135F};
}

StepCase::StepCase(const StepCaseConfig& config, Backend& backend, Communicator& communicator,
                   Communicator* exchange)
    : client_(config.attention, backend),
      worker_(worker_config(config, communicator.size()), backend, communicator, client_,
              exchange) {
  if (communicator.rank() != 0) return;
  sequencer_.emplace(SequencerConfig{
      .placement = {.workers = communicator.size(),
                    .model = worker_config(config, communicator.size()).cost_model()},
      .pages_per_worker = pages_of(config),
      .incarnation = 1});
  for (int i = 0; i < config.batch; ++i) {
    const auto id = sequencer_->admit(
        {.prompt_tokens = config.context - 1, .max_new_tokens = 1, .spread = config.spread},
        {.tag = i});
    step_.push_back({id.value(), 1});
  }
  worker_.lead(sequencer_->take_order()).status.throw_if_error();  // fills
}

RoundReport StepCase::run() {
  sequencer_->begin_step(step_);
  RoundReport report = worker_.lead(sequencer_->take_order());
  report.status.throw_if_error();
  sequencer_->abort_step();
  return report;
}

void StepCase::stop() {
  Order last = sequencer_->take_order();
  last.stop = true;
  worker_.lead(last).status.throw_if_error();
}

void StepCase::follow() {
  for (bool stop = false; !stop;) {
    const RoundReport round = worker_.follow();
    round.status.throw_if_error();
    stop = round.stop;
  }
}

}  // namespace tributary::bench
