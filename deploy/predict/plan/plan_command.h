// `tributary plan`: the predicted time of a step on a pool of given machines, and the spread and
// exchange for which it is shortest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/cost/cost_model.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "deploy/predict/plan/whole_batch.h"
#include "deploy/runtime/shared_options.h"
#include "deploy/service/protocol/machine_file.h"

namespace tributary {

struct PlanOptions {
  std::string shape = "deepseek-v3";
  std::optional<std::filesystem::path> model;
  std::optional<std::filesystem::path> machine;
  std::string gpu = "h200";
  int workers_per_node = 8;
  int nodes = 1;
  int layers = 0;
  std::int64_t context = 32'768;
  int batch = 64;
  int tokens = 1;
  int leaf_tokens = 0;
  int topk = -1;
  bool forward = false;
  double target_ms = 0;
  double memory_gib = 0;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  bool table = false;
  std::optional<std::filesystem::path> json;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    visit_shape(v, shape);
    v(model, "--model", "FILE",
      "The config.json of a model with weights that we load, instead of --shape");
    v(machine, "--machine", "FILE",
      "Constants that `tributary bench --json FILE` measured, instead of --gpu");
    v(gpu, "--gpu", "h100|h200|cpu", "The vendor's figures of this one, not measured");
    v(workers_per_node, "--workers-per-node", {1, 1024}, "Workers (GPUs) of a node");
    v(nodes, "--nodes", {1, 1024}, "Nodes of the pool");
    v(batch, "--batch", {1, 1 << 16}, "Sequences of a step");
    v(context, "--context", {2, 1 << 24}, "Tokens of each sequence");
    v(tokens, "--tokens-per-step", {1, kMaxStepTokens}, "New tokens of a sequence in one step");
    v(layers, "--layers", {0, 1024}, "Layers", {.shown_default = "0, the model's"});
    v(target_ms, "--target-ms", {0, 1e6}, "Time for a token that is wanted",
      {.shown_default = "0, none"});
    v(forward, "--forward", "The pool holds the attention weights and does the projections too");
    v(memory_gib, "--memory-gib", {0, 1e6}, "Memory of a worker",
      {.shown_default = "0, the GPU's; of a --machine not known"});
    visit_pool_leaf_tokens(v, leaf_tokens);
    visit_rows(v, row_format);
    visit_query(v, query_dtype);
    visit_topk(v, topk);
    v(table, "--table",
      "From which length and batch on a spread pays: 1 to 256 sequences of 4k to 1M tokens, "
      "instead of --batch and --context");
    v(json, "--json", "FILE", "Write the plan to this file as JSON too");
  }
};

struct PlanCandidate {
  SpreadPolicy spread = SpreadPolicy::kAuto;
  Exchange exchange = Exchange::kAllToAll;
  StepPrediction step;
  double spread_workers = 0;   // that hold a sequence, mean
  double exchanged_bytes = 0;  // of a layer, all workers
  double least_bytes = 0;      // that any exchange needs with the same owners
  double cache_bytes = 0;      // on the worker that holds most, all layers
};

struct PlanReport {
  Machine machine;
  std::string shape;
  int topk = 0;  // rows that a token selects at most; 0: it attends to all
  int workers = 1;
  int layers = 1;
  double weight_bytes = 0;                // of a worker, all layers
  double memory_bytes = 0;                // of a worker; 0: not known
  std::int64_t workers_needed = 1;        // that hold the rows of all sequences, at least
  std::vector<PlanCandidate> candidates;  // the shortest step first
  std::optional<WholeBatch> whole;        // of one new token each, and not for a table
};

/// Whether it fits the workers' memory, if that is known.
[[nodiscard]] bool fits(const PlanCandidate& candidate, const PlanReport& report);

/// Throws kInvalidArgument, kNotFound, kIo, kMalformedInput.
[[nodiscard]] PlanReport plan(const PlanOptions& options);
[[nodiscard]] std::string to_text(const PlanReport& report, const PlanOptions& options);
[[nodiscard]] std::string to_json(const PlanReport& report, const PlanOptions& options);

}  // namespace tributary
