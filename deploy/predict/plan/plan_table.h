// `tributary plan --table`: the length and batch from which a spread pays on these machines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deploy/predict/plan/plan_command.h"

namespace tributary {

/// A step of equal sequences, with the best placement that the workers' memory holds.
struct PlanTableCell {
  int batch = 1;
  std::int64_t context = 0;
  std::optional<double> whole_us;  // with each sequence on one worker; none: they do not fit this
                                   // way
  std::optional<double> best_us;   // of all placements; none: nothing fits
  std::string best;                // its policy
};

struct PlanTable {
  PlanReport pool;  // of the first cell: the machine, the shape, the workers
  std::vector<int> batches;
  std::vector<std::int64_t> contexts;
  std::vector<PlanTableCell> cells;  // batch by batch
};

/// `options`' batch and context are not used. Throws as plan() does.
[[nodiscard]] PlanTable plan_table(PlanOptions options);
[[nodiscard]] std::string to_text(const PlanTable& table, const PlanOptions& options);
[[nodiscard]] std::string to_json(const PlanTable& table);

}  // namespace tributary
