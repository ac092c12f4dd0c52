// The golden files that tests run over, and the bounds that their README derives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/reference/error_measures.h"
#include "core/reference/golden_case.h"
#include "tests/core/model/model_files.h"

namespace tributary::test {

inline constexpr std::string_view kGoldenNames[] = {"tiny", "lite", "v3-slim"};

/// `tiny` is part of the repository, the others may be absent.
inline std::filesystem::path golden_file(std::string_view name) {
  if (name == "tiny") return tiny_safetensors();
  return shared_file("golden/" + std::string(name) + ".safetensors");
}

/// Skips the calling test, loudly, when the file is absent.
#define TRIBUTARY_SKIP_WITHOUT(path)                                                       \
  if (!std::filesystem::exists(path)) {                                                    \
    GTEST_SKIP() << "NOT TESTED: " << (path).string()                                      \
                 << " is absent; set TRIBUTARY_SHARED_DIR to the folder that has golden/"; \
  }

/// From the golden README, "Judging a result": float32 arithmetic against its group.
struct GoldenBounds {
  double relative, row;           // outputs, latents, queries
  double cache_kv, cache_kv_row;  // stored latents
  double cache_pe, cache_pe_row;  // stored rope keys
  double lse;                     // absolute
};
inline GoldenBounds golden_bounds(std::string_view group) {
  if (group == "f32") return {3e-5, 1e-4, 1e-6, 1e-4, 3e-5, 1e-4, 5e-5};
  return {5e-4, 2e-3, 5e-4, 2e-3, 5e-4, 2e-3, 5e-4};
}

/// The group of that name, which the file must have.
inline const GoldenGroup& group_of(const GoldenCase& golden, std::string_view name) {
  const auto found = std::ranges::find(golden.groups, name, &GoldenGroup::name);
  if (found == golden.groups.end()) {
    fail(ErrorCode::kNotFound, "{} has no group {}", golden.path.string(), name);
  }
  return *found;
}

template <typename T>
void expect_close(std::string_view what, std::span<const T> got, std::span<const double> expected,
                  std::int64_t row_width, double relative, double row) {
  const TensorError error = measure_error(got, expected, row_width);
  EXPECT_LE(error.relative_frobenius, relative) << what << ": " << error.text();
  EXPECT_LE(error.worst_row, row) << what << ": " << error.text();
}

template <typename T>
void expect_lse_close(std::string_view what, std::span<const T> got,
                      std::span<const double> expected, double bound) {
  const TensorError error = measure_error(got, expected, 1);
  EXPECT_LE(error.max_absolute, bound) << what << ": " << error.text();
}

}  // namespace tributary::test
