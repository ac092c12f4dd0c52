// Whole pools that serve: their replies equal those of a pool without a service, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

using Part = PoolUser::Part;

TEST(ServiceAttend, OutputsAreThoseOfThePoolForAnyNumberOfWorkers) {
  const std::vector<PoolRequest> requests{{0, 130, 6}, {1, 64, 6}, {2, 1, 6}, {3, 300, 6}};
  PoolOutputs expected;
  for (const int workers : {1, 2, 3}) {
    ServicePool pool(workers, small_options());
    PoolUser user(pool);
    if (expected.empty()) expected = outputs_without_service(user.shape(), requests, 2);
    PoolOutputs outputs;
    std::vector<UserSequence> sequences;
    for (const PoolRequest& request : requests) {
      sequences.push_back(user.start(request.tag, request.prompt_tokens, request.max_new_tokens));
    }
    for (int step = 0; step < 3; ++step) {
      for (UserSequence& sequence : sequences) user.decode(sequence, 2, outputs);
    }
    EXPECT_EQ(differing_outputs(outputs, expected), 0U) << workers;
    for (const UserSequence& sequence : sequences) pool.free(sequence.info.id);
    pool.expect_all_free();
    const PoolMetrics metrics = pool.heartbeat().metrics;
    EXPECT_EQ(metrics.tokens, 24U);
    EXPECT_EQ(metrics.steps, 12U);
    EXPECT_EQ(metrics.rounds, 24U);
    EXPECT_GT(metrics.canaries, 0U);
    EXPECT_EQ(metrics.canary_failures, 0U) << metrics.canary_error;
    pool.stop();
  }
}

TEST(ServiceAttend, ClientsAtDifferentLayersShareRounds) {
  WorkerOptions options = small_options();
  options.leader.batch_wait_us = 20'000;
  ServicePool pool(2, options);
  constexpr int kClients = 4;
  std::vector<PoolRequest> requests;
  for (int c = 0; c < kClients; ++c) requests.push_back({c, 70 + c, 8});
  std::vector<PoolOutputs> outputs(kClients);
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      PoolUser user(pool);
      auto sequence = user.start(requests[static_cast<std::size_t>(c)].tag,
                                 requests[static_cast<std::size_t>(c)].prompt_tokens, 8);
      for (int step = 0; step < 8; ++step) {
        user.decode(sequence, 1, outputs[static_cast<std::size_t>(c)]);
      }
    });
  }
  for (auto& client : clients) client.join();
  PoolOutputs all;
  for (auto& part : outputs) all.merge(part);
  EXPECT_EQ(differing_outputs(all, outputs_without_service(pool.card().shape, requests, 1)), 0U);
  const PoolMetrics metrics = pool.heartbeat().metrics;
  EXPECT_EQ(metrics.tokens, 32U);
  EXPECT_LT(metrics.rounds, 64U);  // some of the 64 items shared one
}

TEST(ServiceAttend, SeveralSendersInPieces) {
  ServicePool pool(3, small_options());
  PoolUser first(pool);
  PoolUser second(pool);
  UserSequence sequence = first.admit(5, 333, 4);
  EXPECT_EQ(pool.card().sequences.at(0).state, SequenceState::kFilling);
  std::thread other([&] {
    for (std::int64_t begin = 320; begin >= 0; begin -= 64) {
      const auto refused = second.push(sequence, 1, begin, std::min<std::int64_t>(begin + 64, 333));
      EXPECT_TRUE(refused.empty());
    }
  });
  for (std::int64_t begin = 0; begin < 333; begin += 37) {
    EXPECT_TRUE(first.push(sequence, 0, begin, std::min<std::int64_t>(begin + 37, 333)).empty());
  }
  other.join();
  PoolOutputs outputs;
  for (int step = 0; step < 4; ++step) first.decode(sequence, 1, outputs);
  EXPECT_EQ(differing_outputs(outputs, outputs_without_service(first.shape(), {{5, 333, 4}}, 1)),
            0U);
  const PoolMetrics metrics = pool.heartbeat().metrics;
  EXPECT_EQ(metrics.ready + metrics.stepping + metrics.filling, 1);
}

TEST(ServiceAttend, DecodingEarlierSaysWhatIsMissing) {
  ServicePool pool(2, small_options());
  PoolUser user(pool);
  const UserSequence sequence = user.admit(1, 128, 4);
  const Extent& last = sequence.info.extents.back();
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_TRUE(user.push(sequence, layer, 0, last.begin).empty());
  }
  EXPECT_TRUE(user.push(sequence, 0, last.begin, last.begin + 10).empty());
  const auto result = user.attend({{&sequence, 1, 0}});
  EXPECT_EQ(result.reply.items.at(0), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(result.reply.message,
            fmt::format("not ready: worker {} has 10 of {} rows, first missing layer 0 position {}",
                        last.rank, 2 * (last.end - last.begin), last.begin + 10));
  EXPECT_TRUE(user.push(sequence, 0, last.begin + 10, last.end).empty());
  EXPECT_TRUE(user.push(sequence, 1, last.begin, last.end).empty());
  EXPECT_EQ(user.attend({{&sequence, 1, 0}}).reply.items.at(0), ErrorCode::kOk);
}

}  // namespace
}  // namespace tributary::test
