// Pools that project at their leaves: one result however it is computed, near float64, with the
// bytes that the plan says, and refused where workers differ.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/reference/reference_attend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/bits_backends.h"
#include "tests/deploy/pool/planted_error.h"
#include "tests/deploy/pool/pool_harness.h"
#include "tests/deploy/pool/projected_shape.h"

namespace tributary {
namespace {

class PoolProjection : public testing::TestWithParam<std::string> {
 protected:
  PoolSetup setup(int workers, SpreadPolicy spread, Exchange exchange, int threads = 1) {
    PoolSetup setup;
    setup.workers = workers;
    setup.spread = spread;
    setup.exchange = exchange;
    setup.shape = at_leaves(setup.shape);
    use_backend(setup, GetParam(), threads);
    return setup;
  }

  static PoolOutputs decode(const PoolSetup& setup, const PoolLeader::Batching& batching) {
    return run_pool(setup, [&](PoolLeader& leader) { leader.decode(border_requests(), batching); })
        .outputs;
  }
  /// One worker, one sequence at a time, a token a step.
  PoolOutputs baseline() {
    return decode(setup(1, SpreadPolicy::kSingle, Exchange::kAllToAll), {.max_batch = 1});
  }
};

TEST_P(PoolProjection, BitsAreTheSameForEveryPool) {
  const PoolOutputs expected = baseline();
  int number = 0;
  for (const int workers : {1, 2, 3, 8}) {
    for (const SpreadPolicy spread :
         {SpreadPolicy::kSingle, SpreadPolicy::kAll, SpreadPolicy::kAuto}) {
      const Exchange exchange = ++number % 2 == 0 ? Exchange::kAllGather : Exchange::kAllToAll;
      const PoolOutputs outputs =
          decode(setup(workers, spread, exchange, 1 + number % 3 % 2), {.tokens = mixed_tokens});
      EXPECT_EQ(differing_outputs(outputs, expected), 0U)
          << workers << " workers, spread " << spread_policy_name(spread) << ", "
          << exchange_name(exchange);
    }
  }
  for (const int max_batch : {2, 5}) {
    const PoolOutputs outputs = decode(setup(3, SpreadPolicy::kAll, Exchange::kAuto, 2),
                                       {.max_batch = max_batch, .tokens = mixed_tokens});
    EXPECT_EQ(differing_outputs(outputs, expected), 0U) << "at most " << max_batch;
  }
}

/// W x of each head in float64.
std::vector<double> product_of_heads(const std::vector<float>& weight, std::span<const double> x,
                                     int heads, int rows, int cols, int stride) {
  std::vector<double> y;
  const auto at = [](int index) { return static_cast<std::size_t>(index); };
  for (int h = 0; h < heads; ++h) {
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      for (int c = 0; c < cols; ++c) {
        sum += double{weight[at((h * rows + r) * cols + c)]} * x[at(h * stride + c)];
      }
      y.push_back(sum);
    }
  }
  return y;
}

TEST_P(PoolProjection, OutputsAreNearFloat64) {
  const PoolSetup pool = setup(3, SpreadPolicy::kAll, Exchange::kAllToAll);
  const AttentionShape& shape = pool.shape;
  const PoolOutputs outputs = decode(pool, {.tokens = mixed_tokens});
  // A query is rounded twice where it is bf16, before W_UK and after it.
  const double bound = shape.query_dtype == DType::kF32 ? 1e-5 : 2e-2;
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto value = static_cast<std::size_t>(shape.v_head_dim);
  const int nope = shape.qk_nope_head_dim;
  int compared = 0;
  for (const auto& [token, state] : outputs) {
    const auto& [tag, layer, position] = token;
    ASSERT_EQ(state.size(), heads * (value + 1));
    if (position % 7 != 0) continue;
    ++compared;
    const auto stored = pool_query(shape, tag, layer, position);
    const std::vector<double> plain(stored.begin(), stored.end());
    const PoolWeights weights = pool_weights(shape, layer);
    const auto absorbed = product_of_heads(weights.w_uk, plain, shape.heads, shape.kv_lora_rank,
                                           nope, shape.query_width());
    std::vector<double> query;
    std::vector<float> rows;
    for (int h = 0; h < shape.heads; ++h) {
      const auto latent = absorbed.begin() + h * shape.kv_lora_rank;
      query.insert(query.end(), latent, latent + shape.kv_lora_rank);
      const auto rope = plain.begin() + h * shape.query_width() + nope;
      query.insert(query.end(), rope, rope + shape.qk_rope_head_dim);
    }
    for (std::int64_t p = 0; p <= position; ++p) {
      const auto row = pool_row(shape, tag, layer, p);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const ReferenceState reference =
        reference_attend(shape.heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
                         double{shape.softmax_scale}, query, std::span<const float>(rows));
    const auto expected = product_of_heads(weights.w_uv, reference.o, shape.heads, shape.v_head_dim,
                                           shape.kv_lora_rank, shape.kv_lora_rank);
    double difference = 0;
    double norm = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(double{state[i]} - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    EXPECT_LT(std::sqrt(difference / norm), bound) << "tag " << tag << ", position " << position;
    for (std::size_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(state[heads * value + h], reference.lse[h], bound);
    }
  }
  EXPECT_GT(compared, 0);
}

/// Items of one round at layers of their own: the products of each layer are apart.
TEST_P(PoolProjection, BitsAreTheSameForItemsAtDifferentLayers) {
  const auto decode_rounds = [&](int workers, bool together) {
    PoolSetup pool = setup(workers, SpreadPolicy::kAll, Exchange::kAllToAll);
    pool.layers = 3;
    return run_pool(pool,
                    [&](PoolLeader& leader) {
                      std::vector<SequenceId> ids;
                      std::vector<Sequencer::StepRequest> step;
                      for (const PoolRequest& request :
                           {PoolRequest{1, 63, 8}, {2, 500, 8}, {3, 130, 8}, {4, 5, 8}}) {
                        ids.push_back(leader.admit(request).value());
                        step.push_back({ids.back(), 1 + static_cast<std::int32_t>(ids.size() % 3)});
                      }
                      leader.sequencer.open_step(step);
                      for (int round = 0; round < pool.layers; ++round) {
                        std::vector<Sequencer::RoundRequest> items;
                        for (std::size_t i = 0; i < ids.size(); ++i) {
                          items.push_back({ids[i], (round + static_cast<int>(i)) % pool.layers});
                          if (!together) {
                            leader.round(items);
                            items.clear();
                          }
                        }
                        if (together) leader.round(items);
                      }
                    })
        .outputs;
  };
  const PoolOutputs expected = decode_rounds(1, false);
  ASSERT_EQ(expected.size(), 3U * (2 + 3 + 1 + 2));
  for (const int workers : {1, 2, 4}) {
    EXPECT_EQ(differing_outputs(decode_rounds(workers, true), expected), 0U) << workers;
  }
}

INSTANTIATE_TEST_SUITE_P(, PoolProjection, testing::ValuesIn(bits_backends()),
                         [](const auto& info) { return info.param; });

TEST(PoolProjectionBytes, AreThoseOfShorterQueriesAndStates) {
  // DeepSeek-V3's heads, of which a test has fewer.
  PoolSetup home;
  home.workers = 2;
  home.layers = 1;
  home.spread = SpreadPolicy::kAll;
  home.shape = {.heads = 2,
                .kv_lora_rank = 512,
                .qk_rope_head_dim = 64,
                .row_format = RowFormat::kBF16,
                .query_dtype = DType::kBF16,
                .softmax_scale = 0.1F};
  PoolSetup leaves = home;
  leaves.shape.project_at = ProjectAt::kLeaves;
  leaves.shape.qk_nope_head_dim = 128;
  leaves.shape.v_head_dim = 128;
  EXPECT_EQ(home.shape.query_bytes(), 2U * 576 * 2);
  EXPECT_EQ(leaves.shape.query_bytes(), 2U * 192 * 2);
  EXPECT_EQ(leaves.shape.state_shape().record_bytes(), 2U * 129 * 4);
  const auto bytes = [](const PoolSetup& setup) {
    RoundReport report;
    (void)run_pool(setup, [&](PoolLeader& leader) {
      // Two leaves: the one that is not at home gets the query and sends a state back. The new row
      // travels with the query.
      const auto id = leader.admit({1, 100, 4}).value();
      report = leader.step({{id, 1}});
    });
    EXPECT_EQ(report.exchanged_bytes, report.planned_bytes);
    return report;
  };
  const RoundReport wide = bytes(home);
  const RoundReport narrow = bytes(leaves);
  EXPECT_EQ(wide.exchanged_bytes, home.shape.token_record_bytes() + 2U * 513 * 4);
  EXPECT_EQ(narrow.exchanged_bytes, leaves.shape.token_record_bytes() + 2U * 129 * 4);
  EXPECT_EQ(wide.state_bytes, 2U * 513 * 4);
  EXPECT_EQ(narrow.state_bytes, 2U * 129 * 4);
}

PoolSetup projected_setup(int workers) {
  PoolSetup setup;
  setup.workers = workers;
  setup.shape = at_leaves(setup.shape);
  setup.spread = SpreadPolicy::kAll;
  setup.backend = [](int) { return make_cpu_backend({}); };
  return setup;
}

TEST(PoolProjectionCanary, IsOfTheProjectedOutput) {
  for (const DType query : {DType::kF32, DType::kBF16}) {
    for (const int workers : {1, 3}) {
      PoolSetup setup = projected_setup(workers);
      setup.shape.query_dtype = query;
      (void)run_pool(setup, [&](PoolLeader& leader) {
        const auto a = leader.admit({1, 63, 60}).value();
        const auto b = leader.admit({2, 500, 60}).value();
        leader.sequencer.open_step(std::vector<Sequencer::StepRequest>{{a, 5}, {b, 2}});
        for (int i = 0; i < 6; ++i) {
          const RoundReport report =
              leader.round({{a, i % 2}, {b, (i + 1) % 2}}, {i % 2, i % setup.shape.heads});
          EXPECT_TRUE(report.canary_checked);
          EXPECT_LT(report.canary_error, query == DType::kF32 ? 1e-5 : 1e-2);
        }
      });
    }
  }
}

TEST(PoolProjectionCanary, DetectsAPlantedError) {
  for (const int workers : {1, 3}) {
    const RoundReport report = round_with_error(projected_setup(workers), scale_outputs);
    EXPECT_TRUE(report.canary_checked);
    EXPECT_GT(report.canary_error, 1e-2) << workers << " workers";
  }
}

/// The error of a pool of two whose last rank's configuration is changed.
void expect_refused(const std::function<void(WorkerConfig&)>& change, std::string_view message) {
  PoolSetup setup = projected_setup(2);
  setup.change = [&](int rank, WorkerConfig& config) {
    if (rank == 1) change(config);
  };
  const auto run = [&] { (void)run_pool(setup, [](PoolLeader&) {}); };
  EXPECT_EQ(code_of(run), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_of(run), testing::HasSubstr(std::string(message)));
}

TEST(PoolProjectionHandshake, WorkersOfAnotherModeAreRefusedByName) {
  expect_refused(
      [](WorkerConfig& config) {
        config.attention.project_at = ProjectAt::kHome;
        config.attention.qk_nope_head_dim = 0;
      },
      "project_at is leaves on worker 0 and home on worker 1");
  expect_refused([](WorkerConfig& config) { config.attention.v_head_dim = 14; },
                 "v_head_dim is 13 on worker 0 and 14 on worker 1");
}

TEST(PoolProjectionHandshake, WeightsOfEveryLayerAreWanted) {
  PoolSetup setup = projected_setup(2);
  const auto refused = [&](auto change, std::string_view message) {
    const auto backend = make_reference_backend();
    WorkerConfig config{.attention = setup.shape, .layers = 2, .pages = 4, .leaf_tokens = 64};
    const auto owned = make_leaf_weights(config, *backend);
    change(config);
    const auto check = [&] {
      check_leaf_weights(config.attention, config.layers, config.leaf_weights);
    };
    EXPECT_EQ(code_of(check), ErrorCode::kInvalidArgument);
    EXPECT_EQ(message_of(check), message);
  };
  refused([](WorkerConfig& c) { c.leaf_weights.pop_back(); },
          "weights to project with, of 1 layers; expected of 2, as project_at is leaves");
  refused([](WorkerConfig& c) { c.attention.project_at = ProjectAt::kHome; },
          "weights to project with, of 2 layers; expected of 0, as project_at is home");
  refused([](WorkerConfig& c) { c.leaf_weights[1].w_uk = nullptr; },
          "leaves are projected: W_UK of layer 1 is missing");
  refused([](WorkerConfig& c) { std::swap(c.leaf_weights[0].w_uk, c.leaf_weights[0].w_uv); },
          "W_UK of layer 0 is 3 x [13, 24], expected 3 x [24, 11]");
  refused([](WorkerConfig& c) { c.attention.v_head_dim = 5; },
          "W_UV of layer 0 is 3 x [13, 24], expected 3 x [5, 24]");
}

}  // namespace
}  // namespace tributary
