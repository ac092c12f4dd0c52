// Flags of the commands that measure machines and predict pools of them.
#include "core/base/limits.h"
#include "deploy/app/flags/flags.h"
#include "deploy/app/flags/shared_flags.h"
#include "deploy/app/flags/subcommands.h"

namespace tributary {

CLI::App* add_bench(CLI::App& app, BenchOptions& o) {
  auto* sub = app.add_subcommand(
      "bench", "Measure these machines: kernels, exchange and steps, beside what they can do");
  add_workers(*sub, o.workers);
  add_backend(*sub, o.backend, o.threads);
  add_shape(*sub, o.shape);
  add_leaf_tokens(*sub, o.leaf_tokens);
  add_number(*sub, "--seconds", o.seconds, 0.001, 60.0, "Time for each line of the tables");
  add_flag(*sub, "--steps", "LIST", o.steps, parse_bench_steps,
           "Steps to measure, each BATCHxCONTEXT (default " + flag_text(o.steps) + ")");
  add_flag(*sub, "--json", "FILE", o.json, parse_text,
           "Write the report to this file as JSON, with the constants that `tributary plan` reads");
  return sub;
}

CLI::App* add_plan(CLI::App& app, PlanOptions& o) {
  auto* sub = app.add_subcommand(
      "plan", "What a pool would take for a step: memory, time by phase, the best spread");
  add_shape(*sub, o.shape);
  add_flag(*sub, "--model", "FILE", o.model, parse_text,
           "The config.json of a model with weights that we load, instead of --shape");
  add_flag(*sub, "--machine", "FILE", o.machine, parse_text,
           "Constants that `tributary bench --json FILE` measured, instead of --gpu");
  add_flag(*sub, "--gpu", "h100|h200", o.gpu, parse_text,
           "The vendor's figures of this one, not measured (default " + o.gpu + ")");
  add_number(*sub, "--workers-per-node", o.workers_per_node, 1, 1024, "Workers (GPUs) of a node");
  add_number(*sub, "--nodes", o.nodes, 1, 1024, "Nodes of the pool");
  add_number(*sub, "--batch", o.batch, 1, 1 << 16, "Sequences of a step");
  add_number(*sub, "--context", o.context, std::int64_t{2}, std::int64_t{1} << 24,
             "Tokens of each sequence");
  add_number(*sub, "--tokens-per-step", o.tokens, 1, kMaxStepTokens,
             "New tokens of a sequence in one step");
  add_number(*sub, "--layers", o.layers, 0, 1024, "Layers", "0, the model's");
  add_number(*sub, "--target-ms", o.target_ms, 0.0, 1e6, "Time for a token that is wanted",
             "0, none");
  add_switch(*sub, "--forward", o.forward,
             "The pool holds the attention weights and does the projections too");
  add_number(*sub, "--memory-gib", o.memory_gib, 0.0, 1e6, "Memory of a worker",
             "0, the GPU's; of a --machine not known");
  add_number(*sub, "--link-gb-s", o.link_gb_s, 0.0, 1e6,
             "GB/s that a worker receives from others of its node", "0, the machine's");
  add_number(*sub, "--link-us", o.link_us, -1.0, 1e6, "Time of a message within a node",
             "-1, the machine's");
  add_number(*sub, "--network-gb-s", o.network_gb_s, 0.0, 1e6,
             "GB/s that a worker receives from other nodes", "0, the machine's");
  add_number(*sub, "--network-us", o.network_us, -1.0, 1e6, "Time of a message between nodes",
             "-1, the machine's");
  add_leaf_tokens(*sub, o.leaf_tokens);
  add_rows(*sub, o.row_format);
  add_query(*sub, o.query_dtype);
  add_switch(*sub, "--table", o.table,
             "From which length and batch on a spread pays: 1 to 256 sequences of 4k to 1M tokens, "
             "instead of --batch and --context");
  add_flag(*sub, "--json", "FILE", o.json, parse_text, "Write the plan to this file as JSON too");
  return sub;
}

}  // namespace tributary
