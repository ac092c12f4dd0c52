// Pools whose partial states travel as bf16: what that costs in accuracy, to the bound that follows
// from the arithmetic; what it leaves alone; bytes, canary and handshake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/reference/reference_attend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/bits_backends.h"
#include "tests/deploy/pool/planted_error.h"
#include "tests/deploy/pool/pool_harness.h"
#include "tests/deploy/pool/projected_shape.h"

namespace tributary {
namespace {

AttentionShape rounded(AttentionShape shape) {
  shape.state_dtype = DType::kBF16;
  return shape;
}

/// The outputs with `o` left out: lse of every head.
PoolOutputs lse_of(const PoolOutputs& outputs, const AttentionShape& shape) {
  PoolOutputs lse;
  for (const auto& [token, state] : outputs) lse[token] = {state.end() - shape.heads, state.end()};
  return lse;
}

class PoolStates : public testing::TestWithParam<std::string> {
 protected:
  PoolSetup setup(int workers, SpreadPolicy spread, Exchange exchange, int threads = 1) {
    PoolSetup setup;
    setup.workers = workers;
    setup.spread = spread;
    setup.exchange = exchange;
    use_backend(setup, GetParam(), threads);
    return setup;
  }
  static PoolOutputs decode(const PoolSetup& setup, const PoolLeader::Batching& batching = {}) {
    return run_pool(setup, [&](PoolLeader& leader) { leader.decode(border_requests(), batching); })
        .outputs;
  }
};

TEST_P(PoolStates, WhatStaysOnAWorkerKeepsItsBits) {
  for (const int workers : {1, 3}) {
    PoolSetup pool = setup(workers, SpreadPolicy::kSingle, Exchange::kAuto);
    const PoolOutputs expected = decode(pool);
    pool.shape = rounded(pool.shape);
    EXPECT_EQ(differing_outputs(decode(pool), expected), 0U) << workers << " workers";
  }
}

TEST_P(PoolStates, OnePlacementHasOneResultHoweverItIsComputed) {
  PoolSetup pool = setup(3, SpreadPolicy::kAll, Exchange::kAllToAll);
  const PoolOutputs exact = decode(pool);
  pool.shape = rounded(pool.shape);
  const PoolOutputs expected = decode(pool);
  EXPECT_GT(differing_outputs(expected, exact), 0U) << "something was rounded";
  EXPECT_EQ(differing_outputs(lse_of(expected, pool.shape), lse_of(exact, pool.shape)), 0U)
      << "lse travels in fp32";
  PoolSetup other = setup(3, SpreadPolicy::kAll, Exchange::kAllGather, 2);
  other.shape = pool.shape;
  EXPECT_EQ(differing_outputs(decode(other), expected), 0U) << "other exchange, more threads";
  for (PoolSetup* halves : {&pool, &other}) {
    halves->overlap = Overlap::kAlways;
    EXPECT_EQ(differing_outputs(decode(*halves), expected), 0U) << "in halves";
  }
}

/// Of one token: the ranges of positions whose states were sent to its home.
using SentRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// How much rounding may change each value of o: the sum over the roots that were sent of weight
/// times |o| times the roundoff, in float64.
std::vector<double> allowed(const AttentionShape& shape, std::int64_t tag, int layer,
                            std::int64_t position, const SentRanges& sent) {
  const auto stored = pool_query(shape, tag, layer, position);
  const std::vector<double> query(stored.begin(), stored.end());
  const auto attend = [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> rows;
    for (std::int64_t p = begin; p < std::min(end, position + 1); ++p) {
      const auto row = pool_row(shape, tag, layer, p);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return reference_attend(shape.heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
                            double{shape.softmax_scale}, query, std::span<const float>(rows));
  };
  const ReferenceState whole = attend(0, position + 1);
  const auto width = static_cast<std::size_t>(shape.kv_lora_rank);
  std::vector<double> bound(whole.o.size(), 0);
  for (const auto& [begin, end] : sent) {
    if (begin > position) continue;
    const ReferenceState root = attend(begin, end);
    for (std::size_t i = 0; i < bound.size(); ++i) {
      const double weight = std::exp(root.lse[i / width] - whole.lse[i / width]);
      bound[i] += shape.state_roundoff() * weight * std::abs(root.o[i]);
    }
  }
  return bound;
}

TEST_P(PoolStates, EveryValueIsWithinTheBoundOfRoundingWhatWasSent) {
  PoolSetup pool = setup(4, SpreadPolicy::kAll, Exchange::kAllToAll);
  std::map<std::pair<std::int64_t, std::int64_t>, SentRanges> sent;  // by tag and position
  const auto run = [&] {
    return run_pool(pool,
                    [&](PoolLeader& leader) {
                      std::vector<Sequencer::StepRequest> batch;
                      for (const PoolRequest& request :
                           {PoolRequest{1, 63, 8}, {2, 500, 8}, {3, 130, 8}, {4, 1, 8}}) {
                        batch.push_back({leader.admit(request).value(), 2});
                      }
                      for (int step = 0; step < 3; ++step) {
                        leader.sequencer.begin_step(batch);
                        const Order order = leader.sequencer.take_order();
                        Routing routing;
                        build_routing(leader.sequencer.table(), order.step, pool.workers, routing);
                        for (const ItemRoot& root : routing.roots) {
                          const auto& item = routing.items[static_cast<std::size_t>(root.item)];
                          if (root.worker == item.home) continue;
                          for (std::int32_t t = 0; t < item.tokens; ++t) {
                            sent[{item.sequence->tag, item.sequence->length + t}].emplace_back(
                                root.node.first_leaf() * pool.leaf_tokens,
                                root.node.end_leaf() * pool.leaf_tokens);
                          }
                        }
                        leader.lead(order).status.throw_if_error();
                        leader.sequencer.commit_step(std::vector<std::int32_t>(batch.size(), 2));
                      }
                    })
        .outputs;
  };
  const PoolOutputs exact = run();
  pool.shape = rounded(pool.shape);
  sent.clear();
  const PoolOutputs outputs = run();
  ASSERT_EQ(outputs.size(), exact.size());
  ASSERT_FALSE(sent.empty());
  std::size_t changed = 0;
  double largest = 0;
  for (const auto& [token, state] : outputs) {
    const auto& [tag, layer, position] = token;
    const auto found = sent.find({tag, position});
    const std::vector<double> bound = allowed(pool.shape, tag, layer, position,
                                              found == sent.end() ? SentRanges{} : found->second);
    const std::vector<float>& plain = exact.at(token);
    double scale = 0;
    for (std::size_t i = 0; i < bound.size(); ++i)
      scale = std::max(scale, double{std::abs(plain[i])});
    for (std::size_t i = 0; i < bound.size(); ++i) {
      const double error = std::abs(double{state[i]} - double{plain[i]});
      // The bound's weights and |o| are float64's. Kernels of bf16 pairs round weights to 8 bits,
      // which moves a root by 2^-8 of its scale, and the bound by 2^-8 of that.
      ASSERT_LE(error, 1.02 * bound[i] + 0x1p-16 * scale)
          << "tag " << tag << ", layer " << layer << ", position " << position << ", value " << i;
      changed += error > 0 ? 1U : 0U;
      if (bound[i] > 0) largest = std::max(largest, error / bound[i]);
    }
  }
  EXPECT_GT(changed, 0U);
  EXPECT_GT(largest, 0.3) << "a bound that is far from what happens says little";
}

INSTANTIATE_TEST_SUITE_P(, PoolStates, testing::ValuesIn(bits_backends()),
                         [](const auto& info) { return info.param; });

PoolSetup rounded_setup(int workers, ProjectAt place) {
  PoolSetup setup;
  setup.workers = workers;
  if (place == ProjectAt::kLeaves) setup.shape = at_leaves(setup.shape);
  setup.shape = rounded(setup.shape);
  setup.spread = SpreadPolicy::kAll;
  setup.backend = [](int) { return make_cpu_backend({}); };
  return setup;
}

class PoolStatesCanary : public testing::TestWithParam<ProjectAt> {};

TEST_P(PoolStatesCanary, AllowsWhatRoundingMayDoAndNoMore) {
  for (const int workers : {1, 2, 4}) {
    for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
      PoolSetup setup = rounded_setup(workers, GetParam());
      setup.exchange = exchange;
      double most = 0;
      (void)run_pool(setup, [&](PoolLeader& leader) {
        const auto a = leader.admit({1, 63, 60}).value();
        const auto b = leader.admit({2, 500, 60}).value();
        leader.sequencer.open_step(std::vector<Sequencer::StepRequest>{{a, 5}, {b, 2}});
        for (int i = 0; i < 6; ++i) {
          const RoundReport report =
              leader.round({{a, i % 2}, {b, (i + 1) % 2}}, {i % 2, i % setup.shape.heads});
          EXPECT_TRUE(report.canary_checked);
          EXPECT_LT(report.canary_excess, 1e-5) << workers << " workers";
          most = std::max(most, report.canary_error);
        }
      });
      if (workers == 1) {
        EXPECT_LT(most, 1e-5) << "nothing travels";
      } else {
        EXPECT_GT(most, 1e-4) << "what is served is rounded, and the canary says so";
        EXPECT_LT(most, 1e-2);
      }
    }
  }
}

TEST_P(PoolStatesCanary, DetectsAPlantedError) {
  for (const int workers : {1, 2, 4}) {
    const RoundReport report = round_with_error(rounded_setup(workers, GetParam()), scale_outputs);
    EXPECT_TRUE(report.canary_checked);
    EXPECT_GT(report.canary_excess, 1e-2) << workers << " workers";
  }
}

INSTANTIATE_TEST_SUITE_P(, PoolStatesCanary, testing::Values(ProjectAt::kHome, ProjectAt::kLeaves),
                         [](const auto& info) { return std::string(project_at_name(info.param)); });

TEST(PoolStatesBytes, AreHalfAndLse) {
  PoolSetup setup = rounded_setup(2, ProjectAt::kHome);
  setup.layers = 1;
  setup.shape.heads = 2;
  setup.shape.kv_lora_rank = 512;
  setup.shape.qk_rope_head_dim = 64;
  (void)run_pool(setup, [&](PoolLeader& leader) {
    // Two leaves: the one that is not at home sends a state.
    const RoundReport report = leader.step({{leader.admit({1, 100, 4}).value(), 1}});
    EXPECT_EQ(report.state_bytes, 2U * (512 * 2 + 4));
    EXPECT_EQ(report.exchanged_bytes, setup.shape.token_record_bytes() + report.state_bytes);
  });
}

TEST(PoolStatesHandshake, WorkersOfAnotherTypeAreRefusedByName) {
  const auto message = [](DType first, DType second) {
    PoolSetup setup = rounded_setup(2, ProjectAt::kHome);
    setup.change = [=](int rank, WorkerConfig& config) {
      config.attention.state_dtype = rank == 0 ? first : second;
    };
    const auto run = [&] { (void)run_pool(setup, [](PoolLeader&) {}); };
    EXPECT_EQ(code_of(run), ErrorCode::kInvalidArgument);
    return message_of(run);
  };
  EXPECT_THAT(message(DType::kBF16, DType::kF32),
              testing::HasSubstr("state_dtype is bf16 on worker 0 and f32 on worker 1"));
  EXPECT_THAT(message(DType::kF64, DType::kF64),
              testing::HasSubstr("type of travelling states is f64, expected bf16 or f32"));
}

}  // namespace
}  // namespace tributary
