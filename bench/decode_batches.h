// The batches that decode attention is compared on.
#pragma once

#include <array>

namespace tributary::bench {

struct Batch {
  int sequences = 1;
  int length = 0;  // tokens of each
};
inline constexpr std::array kBatches{Batch{1, 4096}, Batch{4, 8192}, Batch{1, 32768},
                                     Batch{1, 131072}};

}  // namespace tributary::bench
