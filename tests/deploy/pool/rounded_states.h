// What tests expect of outputs whose roots were rounded to bf16 to travel.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>

#include "tests/deploy/pool/pool_harness.h"

namespace tributary {

/// `outputs` are `exact` but for o, which is near, in each head's norm; every bit of lse is the
/// same. The norms of the few roots of the tests' rows add up to less than twice that of what they
/// merge to. pool_states_test holds each value to its own bound.
inline void expect_near_rounded(const PoolOutputs& outputs, const PoolOutputs& exact,
                                const AttentionShape& shape) {
  ASSERT_EQ(outputs.size(), exact.size());
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto width = static_cast<std::size_t>(shape.state_shape().width);
  for (const auto& [token, state] : outputs) {
    const std::vector<float>& other = exact.at(token);
    for (std::size_t h = 0; h < heads; ++h) {
      double difference = 0;
      double norm = 0;
      for (std::size_t i = h * width; i < (h + 1) * width; ++i) {
        difference += std::pow(double{state[i]} - double{other[i]}, 2);
        norm += std::pow(double{other[i]}, 2);
      }
      ASSERT_LE(std::sqrt(difference), 2 * 0x1p-8 * std::sqrt(norm));
      ASSERT_EQ(state[heads * width + h], other[heads * width + h]) << "lse travels in fp32";
    }
  }
}

}  // namespace tributary
