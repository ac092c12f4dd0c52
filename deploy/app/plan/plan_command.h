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
#include "deploy/app/plan/whole_batch.h"
#include "deploy/service/protocol/machine_file.h"

namespace tributary {

struct PlanOptions {
  std::string shape = "deepseek-v3";
  std::optional<std::filesystem::path> model;    // a config.json instead of a preset's name
  std::optional<std::filesystem::path> machine;  // of `tributary bench --json`
  std::string gpu = "h200";                      // vendor's figures, without `machine`
  int workers_per_node = 8;
  int nodes = 1;
  int layers = 0;  // 0: the model's
  std::int64_t context = 32'768;
  int batch = 64;
  int tokens = 1;
  int leaf_tokens = 2048;
  bool forward = false;   // the pool does the projections too, and holds their weights
  double target_ms = 0;   // per token; 0: none
  double memory_gib = 0;  // of a worker; 0: the GPU's, or not known
  double link_gb_s = 0;   // 0: the machine's
  double link_us = -1;    // likewise below 0
  double network_gb_s = 0;
  double network_us = -1;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  bool table = false;  // of many batches and contexts, see plan_table.h
  std::optional<std::filesystem::path> json;
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
