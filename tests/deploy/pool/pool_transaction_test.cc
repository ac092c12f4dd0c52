// Steps that are only partly accepted, aborted, or undone leave no trace in later outputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/base/hash.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

constexpr std::int64_t kOtherRows = 500;  // a salt

class PoolTransaction : public testing::TestWithParam<Exchange> {
 protected:
  PoolTransaction() {
    setup_.workers = 3;
    setup_.spread = SpreadPolicy::kAll;
    setup_.exchange = GetParam();
    setup_.backend = [](int) { return make_cpu_backend({}); };
  }

  /// Never anything but single tokens, all accepted.
  PoolOutputs plain(const std::vector<PoolRequest>& requests) {
    PoolSetup setup = setup_;
    setup.accept = nullptr;
    return run_pool(setup, [&](PoolLeader& leader) { leader.decode(requests, {}); }).outputs;
  }

  PoolSetup setup_;
};

TEST_P(PoolTransaction, RejectedTokensLeaveNoTrace) {
  setup_.accept = [](std::int64_t tag, std::int64_t position, std::int32_t tokens) {
    if (tokens == 1) return 1;  // so that the last token is accepted
    const auto hash = mix64(static_cast<std::uint64_t>(tag * 7919 + position * 31 + tokens));
    return static_cast<std::int32_t>(hash % static_cast<std::uint64_t>(tokens + 1));
  };
  const auto outputs =
      run_pool(setup_, [](PoolLeader& leader) {
        leader.decode(border_requests(), {.tokens = [](std::int64_t tag, std::int64_t step) {
                        return 1 + static_cast<std::int32_t>((tag + step) % 9);
                      }});
      }).outputs;
  EXPECT_EQ(differing_outputs(outputs, plain(border_requests())), 0U);
}

TEST_P(PoolTransaction, AnAbortedStepLeavesNoTrace) {
  const std::vector<PoolRequest> requests{{1, 60, 40}, {2, 127, 20}, {3, 0, 30}};
  const auto outputs =
      run_pool(setup_, [&](PoolLeader& leader) {
        std::vector<StepItem> wide;
        std::vector<StepItem> narrow;
        for (const PoolRequest& request : requests) {
          const auto id = leader.admit(request).value();
          wide.push_back({id, 16});
          narrow.push_back({id, 5});
        }
        for (int i = 0; i < 4; ++i) {
          leader.set_salt(kOtherRows);
          (void)leader.run_layers(wide);
          leader.abort(wide);
          leader.set_salt(0);
          (void)leader.step(narrow);
          wide.erase(std::remove_if(wide.begin(), wide.end(),
                                    [&](auto& item) {
                                      const auto& s = leader.sequencer.ledger().table().at(item.id);
                                      return s.length + 16 > s.limit_tokens;
                                    }),
                     wide.end());
        }
      }).outputs;
  auto expected = plain(requests);
  std::erase_if(expected, [&](const auto& entry) {
    const auto& [tag, layer, position] = entry.first;
    return position >= requests[static_cast<std::size_t>(tag - 1)].prompt_tokens + 20;
  });
  EXPECT_EQ(differing_outputs(outputs, expected), 0U);
}

TEST_P(PoolTransaction, TruncatedRowsLeaveNoTrace) {
  const PoolRequest request{1, 150, 150};
  for (const std::int64_t to : {150, 170, 192, 193}) {
    const auto outputs = run_pool(setup_, [&](PoolLeader& leader) {
                           const auto id = leader.admit(request).value();
                           const auto grow_to = [&](std::int64_t length) {
                             const auto left = [&] {
                               return length - leader.sequencer.ledger().table().at(id).length;
                             };
                             while (left() > 0) {
                               const auto tokens = std::min<std::int64_t>(left(), 11);
                               (void)leader.step({{id, static_cast<std::int32_t>(tokens)}});
                             }
                           };
                           grow_to(to);
                           leader.set_salt(kOtherRows);
                           grow_to(280);
                           leader.sequencer.sequences().truncate(id, to);
                           leader.set_salt(0);
                           grow_to(300);
                         }).outputs;
    EXPECT_EQ(differing_outputs(outputs, plain({request})), 0U) << "truncated to " << to;
  }
}

TEST_P(PoolTransaction, ATruncatedPromptMayBeGrownAgain) {
  // Below the prompt's own rows, down to nothing: every row comes from steps then.
  const PoolRequest request{1, 150, 20};
  const auto outputs = run_pool(setup_, [&](PoolLeader& leader) {
                         const auto id = leader.admit(request).value();
                         EXPECT_TRUE(leader.lead().status.ok());
                         leader.sequencer.sequences().truncate(id, 0);
                         for (int i = 0; i < 10; ++i) (void)leader.step({{id, 15}});
                         for (int i = 0; i < 10; ++i) (void)leader.step({{id, 2}});
                       }).outputs;
  EXPECT_EQ(differing_outputs(outputs, plain({{1, 0, 170}})), 0U);
}

TEST_P(PoolTransaction, AnAdmissionInAnOrderOfItsOwnIsTheSame) {
  const auto outputs = run_pool(setup_, [&](PoolLeader& leader) {
                         const auto a = leader.admit({1, 100, 4}).value();
                         const RoundReport report = leader.lead();
                         EXPECT_TRUE(report.status.ok());
                         EXPECT_EQ(report.rounds, 0);
                         EXPECT_TRUE(leader.lead().status.ok());  // nothing at all
                         const auto b = leader.admit({2, 70, 4}).value();
                         (void)leader.step({{b, 4}, {a, 2}});
                         leader.sequencer.sequences().free(b);
                         (void)leader.step({{a, 2}});
                       }).outputs;
  EXPECT_EQ(differing_outputs(outputs, plain({{1, 100, 4}, {2, 70, 4}})), 0U);
}

TEST_P(PoolTransaction, AnOrderOfManySequencesIsNoDifferent) {
  // Longer than the block in which short orders travel.
  std::vector<PoolRequest> requests;
  requests.reserve(60);
  for (std::int64_t tag = 1; tag <= 60; ++tag) requests.push_back({tag, 1 + tag % 3, 130});
  setup_.pages = 200;
  setup_.accept = nullptr;
  const auto outputs = run_pool(setup_, [&](PoolLeader& leader) {
                         std::vector<StepItem> step;
                         step.reserve(requests.size());
                         for (const PoolRequest& request : requests) {
                           step.push_back({leader.admit(request).value(), 1});
                         }
                         (void)leader.step(step);
                       }).outputs;
  ASSERT_EQ(outputs.size(), 2 * requests.size());
  for (PoolRequest& request : requests) request.max_new_tokens = 1;
  EXPECT_EQ(differing_outputs(outputs, plain(requests)), 0U);
}

INSTANTIATE_TEST_SUITE_P(, PoolTransaction,
                         testing::Values(Exchange::kAllGather, Exchange::kAllToAll),
                         [](const auto& info) {
                           return info.param == Exchange::kAllGather ? "AllGather" : "AllToAll";
                         });

}  // namespace
}  // namespace tributary
