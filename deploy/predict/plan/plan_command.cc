#include "deploy/predict/plan/plan_command.h"

#include <algorithm>
#include <cmath>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cost/least_exchange.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "core/model/pool_shape.h"
#include "core/sequencer/uniform_batch.h"

namespace tributary {
namespace {

/// Elements of a layer's attention weights in the absorbed form of core/layer: each is used once a
/// token.
double weight_elements(const ModelShape& s) {
  const double heads = s.num_attention_heads;
  const double hidden = s.hidden_size;
  const double query = heads * s.qk_head_dim();
  const double down =
      s.q_lora_rank == 0 ? hidden * query : hidden * s.q_lora_rank + s.q_lora_rank * query;
  const double head_parts = heads * s.kv_lora_rank * (s.qk_nope_head_dim + s.v_head_dim);
  return down + hidden * s.latent_dim() + head_parts + heads * s.v_head_dim * hidden;
}

Machine machine_of(const PlanOptions& options) {
  Machine machine =
      options.machine ? read_machine(*options.machine) : built_in_machine(options.gpu);
  const int workers = options.nodes * options.workers_per_node;
  if (options.machine && machine.workers == 1 && workers > 1) {
    fail(ErrorCode::kInvalidArgument,
         "{}: measured on one worker, so it knows no exchange: measure with `mpirun -np 2 "
         "tributary bench`",
         options.machine->string());
  }
  return machine;
}

}  // namespace

bool fits(const PlanCandidate& candidate, const PlanReport& report) {
  return report.memory_bytes <= 0 ||
         candidate.cache_bytes + report.weight_bytes <= report.memory_bytes;
}

PlanReport plan(const PlanOptions& options) {
  const MlaShape shape =
      options.model ? mla_shape(read_model_config(*options.model)) : find_mla_shape(options.shape);
  const AttentionShape attention =
      attention_shape(shape, options.row_format, options.query_dtype, options.topk);
  // A shape alone does not say what the projections are.
  const double weights = options.forward
                             ? weight_elements(options.model ? read_model_config(*options.model)
                                                             : find_model_shape(options.shape))
                             : 0;
  PlanReport report;
  report.machine = machine_of(options);
  report.shape = shape.name;
  report.topk = attention.topk;
  report.workers = options.nodes * options.workers_per_node;
  report.layers = options.layers > 0 ? options.layers : shape.layers;
  report.weight_bytes = weights * static_cast<double>(sizeof(bf16)) * report.layers;
  constexpr double kGiB = 0x1p30;
  report.memory_bytes = kGiB * (options.memory_gib > 0 ? options.memory_gib
                                : options.machine      ? 0
                                                  : find_built_in_costs(options.gpu).memory_gib);

  const CostModelConfig config{
      .costs = report.machine.costs,
      .attention = attention,
      .projection = {.weight_bytes = weights * static_cast<double>(sizeof(bf16)),
                     .token_gflop = 2e-9 * weights},
      .layers = report.layers,
      .leaf_tokens =
          options.leaf_tokens > 0 ? options.leaf_tokens : default_leaf_tokens(attention.topk),
      .workers_per_node = options.workers_per_node};
  const double page_bytes = static_cast<double>(kPageTokens) *
                            static_cast<double>(config.attention.row_bytes()) * report.layers;
  const double room = report.memory_bytes - report.weight_bytes;
  if (room > 0) {
    const double rows =
        page_bytes * static_cast<double>(ceil_div(options.context, kPageTokens)) * options.batch;
    report.workers_needed =
        ceil_div(static_cast<std::int64_t>(std::ceil(rows / room)), options.workers_per_node) *
        options.workers_per_node;
  }
  for (const SpreadPolicy spread :
       {SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll}) {
    const UniformBatch batch({.workers = report.workers,
                              .batch = options.batch,
                              .context = options.context,
                              .tokens = options.tokens,
                              .spread = spread,
                              .model = config});
    const Routing& routing = batch.routing();
    for (const Exchange exchange : {Exchange::kAllToAll, Exchange::kAllGather}) {
      const ExchangeVolume volume = exchange_volume(routing, report.workers, exchange);
      report.candidates.push_back(
          {.spread = spread,
           .exchange = exchange,
           .step = predict_step(config, routing, report.workers, exchange),
           .spread_workers = static_cast<double>(routing.spread.size()) /
                             static_cast<double>(routing.items.size()),
           .exchanged_bytes =
               static_cast<double>(volume.token_records) *
                   static_cast<double>(config.attention.token_record_bytes()) +
               static_cast<double>(volume.state_records) *
                   static_cast<double>(config.attention.state_shape().record_bytes()),
           .least_bytes = least_exchange_bytes(routing, config.attention),
           .cache_bytes = static_cast<double>(batch.busiest_pages()) * page_bytes});
    }
  }
  if (options.tokens == 1 && !options.table) {
    report.whole = plan_whole_batch(config, report.workers, options.batch, options.context);
  }
  // A candidate that does not fit does not count, however fast. Of equals, the first wins, which
  // the pool would choose itself.
  std::ranges::stable_sort(report.candidates, [&](const auto& a, const auto& b) {
    return std::pair(!fits(a, report), a.step.step_us) <
           std::pair(!fits(b, report), b.step.step_us);
  });
  return report;
}

}  // namespace tributary
