#include "deploy/predict/plan/plan_table.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr int kMaxBatch = 256;
/// Each of the 81 steps of a table takes a time that grows with the workers: of more, minutes.
constexpr int kMaxTableWorkers = 1024;
constexpr std::int64_t kMinContext = 4096;
constexpr std::int64_t kMaxContext = std::int64_t{1} << 20;

PlanTableCell cell_of(const PlanReport& report, const PlanOptions& options) {
  PlanTableCell cell{.batch = options.batch,
                     .context = options.context,
                     .whole_us = std::nullopt,
                     .best_us = std::nullopt,
                     .best = ""};
  for (const PlanCandidate& candidate : report.candidates) {  // the best first
    if (!fits(candidate, report)) continue;
    if (!cell.best_us) {
      cell.best_us = candidate.step.step_us;
      cell.best = spread_policy_name(candidate.spread);
    }
    // A batch that any policy left whole is whole.
    if (!cell.whole_us && candidate.spread_workers <= 1) cell.whole_us = candidate.step.step_us;
  }
  return cell;
}

std::string cell_text(const PlanTableCell& cell) {
  if (!cell.best_us) return "-";
  if (!cell.whole_us) return "only so";
  const double gain = *cell.whole_us / *cell.best_us;
  return gain > 1 ? fmt::format("{:.2f}", gain) : "whole";
}

std::string context_text(std::int64_t context) {
  return context < (1 << 20) ? fmt::format("{}k", context >> 10)
                             : fmt::format("{}M", context >> 20);
}

nlohmann::json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

PlanTable plan_table(PlanOptions options) {
  const int workers = options.nodes * options.workers_per_node;
  if (workers > kMaxTableWorkers) {
    fail(ErrorCode::kInvalidArgument,
         "--table of {} workers: expected at most {}; --batch and --context predict one step of "
         "more",
         workers, kMaxTableWorkers);
  }
  PlanTable table;
  for (int batch = 1; batch <= kMaxBatch; batch *= 2) table.batches.push_back(batch);
  for (std::int64_t context = kMinContext; context <= kMaxContext; context *= 2) {
    table.contexts.push_back(context);
  }
  for (const int batch : table.batches) {
    for (const std::int64_t context : table.contexts) {
      options.batch = batch;
      options.context = context;
      PlanReport report = plan(options);
      table.cells.push_back(cell_of(report, options));
      if (table.cells.size() == 1) table.pool = std::move(report);
    }
  }
  return table;
}

std::string to_text(const PlanTable& table, const PlanOptions& options) {
  std::string text = fmt::format(
      "machine    {} ({})\n"
      "pool       {} workers: {} on each of {} node{}\n"
      "work       {}, {} layers; equal sequences, {} new token{} each a step\n\n"
      "How many times faster a step is with the best spread than with whole sequences. whole: no\n"
      "spread pays; only so: they do not fit whole; -: they do not fit.\n\n{:>10}",
      table.pool.machine.description, table.pool.machine.source, table.pool.workers,
      options.workers_per_node, options.nodes, options.nodes == 1 ? "" : "s", table.pool.shape,
      table.pool.layers, options.tokens, options.tokens == 1 ? "" : "s", "sequences");
  for (const std::int64_t context : table.contexts) {
    text += fmt::format("{:>9}", context_text(context));
  }
  std::size_t next = 0;
  for (const int batch : table.batches) {
    text += fmt::format("\n{:>10}", batch);
    for (std::size_t i = 0; i < table.contexts.size(); ++i) {
      text += fmt::format("{:>9}", cell_text(table.cells[next++]));
    }
  }
  return text + "\n";
}

std::string to_json(const PlanTable& table) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const PlanTableCell& cell : table.cells) {
    cells.push_back({{"batch", cell.batch},
                     {"context", cell.context},
                     {"whole_us", optional_json(cell.whole_us)},
                     {"best_us", optional_json(cell.best_us)},
                     {"best", cell.best}});
  }
  return nlohmann::ordered_json{{"machine", to_json(table.pool.machine)},
                                {"shape", table.pool.shape},
                                {"topk", table.pool.topk},
                                {"workers", table.pool.workers},
                                {"layers", table.pool.layers},
                                {"cells", std::move(cells)}}
      .dump(2);
}

}  // namespace tributary
