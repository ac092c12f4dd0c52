// Rows of FP8 codes: a cache of them gives the bits of a bf16 cache that holds their values.
#include <utility>
#include <vector>

#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/codes_case.h"

namespace tributary::test {
namespace {

TEST_P(BackendConformance, RowsOfCodesGiveTheBitsOfTheirValues) {
  const bool emulated = backend().name().starts_with("cuda/Emulated");  // it takes its time
  const std::vector<std::pair<int, int>> widths{{512, 64}, {128, 2}, {256, 0}};
  for (const RowFormat format : formats_of_codes()) {
    for (const auto& [rank, rope] : widths) {
      for (const int heads : {1, 4, 16, 17, 64, 128}) {
        if (rank != 512 && heads > 17) continue;
        if (emulated && heads != 4 && (rank != 512 || heads != 17)) continue;
        for (const DType query : {DType::kBF16, DType::kF32}) {
          expect_bits_of_values(backend(), {rank, rope, heads, format, query});
        }
      }
    }
  }
}

}  // namespace
}  // namespace tributary::test
