// The computed tensors of a golden case against their expected values.
#pragma once

#include <string>
#include <vector>

#include "core/model/attention_shape.h"
#include "core/reference/golden_case.h"
#include "deploy/app/golden/golden_layer.h"

namespace tributary {

/// One line of the result: a tensor of a group against its expected values.
struct VerifyRow {
  std::string file;
  std::string group;   // `f32`, `bf16cache`
  std::string tensor;  // `prefill.output`, `cache`, `decode.latent`, ...
  double error = 0;    // relative Frobenius; for lse the largest absolute error
  double worst_row = 0;
  double bound = 0;
  double row_bound = 0;
  [[nodiscard]] bool ok() const noexcept { return error <= bound && worst_row <= row_bound; }
};

/// Judges results of a pool of that shape, whose type of queries widens the bounds. Adds a row for
/// every tensor of the group.
void judge_all(const GoldenCase& golden, const GoldenGroup& group, const AttentionShape& pool,
               const GoldenResults& results, std::vector<VerifyRow>& rows);
/// The outputs [B, D, hidden_size] of decode steps whose projections happened elsewhere.
void judge_forward(const GoldenCase& golden, const GoldenGroup& group, const AttentionShape& pool,
                   const std::vector<float>& output, std::vector<VerifyRow>& rows);

/// The latents [B, D, H, C] and lse [B, D, H] of attention to selected rows, or to all if the pool
/// has no topk.
void judge_selection(const GoldenSelection& golden, const AttentionShape& pool,
                     const std::vector<float>& latent, const std::vector<float>& lse,
                     std::vector<VerifyRow>& rows);

/// Writes the rows as a table with a head, a line a row.
[[nodiscard]] std::string to_text(const std::vector<VerifyRow>& rows);

}  // namespace tributary
