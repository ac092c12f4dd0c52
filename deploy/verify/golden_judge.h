// What was computed of a golden case against its expected values.
#pragma once

#include <vector>

#include "core/base/dtype.h"
#include "core/reference/golden_case.h"
#include "deploy/verify/golden_layer.h"
#include "deploy/verify/verify.h"

namespace tributary {

/// Adds a row for every tensor of the group.
void judge_all(const GoldenCase& golden, const GoldenGroup& group, DType query_dtype,
               const GoldenResults& results, std::vector<VerifyRow>& rows);
/// The outputs [B, D, hidden_size] of decode steps whose projections happened elsewhere.
void judge_forward(const GoldenCase& golden, const GoldenGroup& group, DType query_dtype,
                   const std::vector<float>& output, std::vector<VerifyRow>& rows);

}  // namespace tributary
