// One case of the correctness grid: decode attention of a batch through the CUDA backend, leaf by
// leaf and merged, beside float64.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/interface/backend.h"

namespace tributary::test {

struct GridCase {
  int batch = 1, tokens = 1, length = 64, heads = 16;
  bool variable = false;  // different lengths from 1 to `length`
  bool causal = true;     // the new tokens are the last rows; else every token sees all rows
  bool empties = false;   // every third sequence sees nothing
  double deviation = 1;   // of the scores

  [[nodiscard]] std::string text() const;
};

/// The results of a case: one record of StateShape{heads, 512} a token, and the same in float64.
struct GridResult {
  std::vector<float> states;
  std::vector<double> exact;  // [token][head][513]
};

/// Pages of random rows, made once, from which every case takes its sequences, except their last
/// pages, which are filled up with NaN. Page tables have garbage after their last page.
class DecodeGrid {
 public:
  explicit DecodeGrid(Backend& backend);

  /// With `only` >= 0, that sequence of the case alone, with the same rows and queries.
  [[nodiscard]] GridResult run(const GridCase& grid_case, int only = -1);
  /// The first head of the last token of a sequence that sees everything, by core/reference: o,
  /// then lse.
  [[nodiscard]] std::vector<double> on_host(const GridCase& grid_case, int sequence);

 private:
  Backend& backend_;
  std::unique_ptr<Buffer> rows_;
  std::unique_ptr<Cache> cache_;
};

/// Fails the test if the result is not near float64: positions of infinities and NaN first, then
/// every element (absolute < 8e-4 or relative < 2.01 / 128), 1 - cosine < 5e-6, and lse (relative <
/// 8.01 / 65536).
void expect_near(const GridCase& grid_case, const GridResult& result);

}  // namespace tributary::test
