// Rows that come back from a pool that serves: those that were pushed and committed, bit for bit,
// wherever they lie by then.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

class ServicePulls : public testing::TestWithParam<TransportChoice> {
 protected:
  static WorkerOptions options() {
    WorkerOptions options = small_options();
    options.transport = GetParam();
    options.leader.lease_ms = 300'000;
    return options;
  }
  [[nodiscard]] static wire::Pull header(const UserSequence& sequence, int layer,
                                         std::int64_t begin, std::int64_t end) {
    return {.sequence_id = sequence.info.id,
            .epoch = sequence.epoch,
            .deadline_us = 30'000'000,
            .layer = layer,
            .begin = begin,
            .count = end - begin};
  }
  RawClient::PullResult ask(int rank, const UserSequence& sequence, const wire::Pull& pull) {
    return user.client.wait_pull(user.client.send_pull(user.peer(rank, sequence), pull));
  }
  /// Rows begin .. end - 1, beginning with `rank`, who need not have them.
  std::vector<std::byte> pull(const UserSequence& sequence, int layer, std::int64_t begin,
                              std::int64_t end, int rank) {
    std::vector<std::byte> rows;
    while (begin < end) {
      const auto got = ask(rank, sequence, header(sequence, layer, begin, end));
      EXPECT_TRUE(got.reply.outcome.ok()) << got.reply.outcome.message;
      if (!got.reply.outcome.ok()) break;
      rows.insert(rows.end(), got.rows.begin(), got.rows.end());
      begin += got.reply.count;
      rank = got.reply.owner;
    }
    return rows;
  }
  void expect_pulled(const UserSequence& sequence, std::int64_t begin, std::int64_t end) {
    for (int layer = 0; layer < user.shape().layers; ++layer) {
      const auto expected = user.rows(sequence, layer, begin, end);
      for (int rank = 0; rank < kWorkers; ++rank) {
        EXPECT_EQ(pull(sequence, layer, begin, end, rank), expected)
            << "layer " << layer << ", by worker " << rank;
      }
    }
  }

  /// Waits for the workers' next heartbeats, which carry the counts.
  template <typename Count>
  std::uint64_t told(Count count, std::uint64_t expected) {
    const Deadline deadline = Deadline::after(kPatience);
    while (count(pool.heartbeat().metrics) < expected && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return count(pool.heartbeat().metrics);
  }

  static constexpr int kWorkers = 3;
  ServicePool pool{kWorkers, options()};
  PoolUser user{pool};
};

TEST_P(ServicePulls, AreWhatWasPushedAndCommitted) {
  UserSequence sequence = user.admit(1, 300, 40);
  for (const int layer : {0, 1}) EXPECT_TRUE(user.push(sequence, layer, 0, 150).empty());
  expect_pulled(sequence, 0, 150);  // while the rest is missing
  const auto early =
      ask(sequence.info.extents.back().rank, sequence, header(sequence, 0, 299, 300));
  EXPECT_EQ(early.reply.outcome.code, ErrorCode::kFailedPrecondition);
  for (const int layer : {0, 1}) EXPECT_TRUE(user.push(sequence, layer, 150, 300).empty());
  PoolOutputs outputs;
  for (int step = 0; step < 10; ++step) {
    user.decode(sequence, 3, outputs);
    // What was committed a moment ago, of every worker.
    const std::int64_t end = sequence.length;
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(pull(sequence, 1, end - 3, end, rank), user.rows(sequence, 1, end - 3, end));
    }
  }
  expect_pulled(sequence, 0, 330);
  const auto beyond = ask(0, sequence, header(sequence, 0, 0, 331));
  EXPECT_EQ(beyond.reply.outcome.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(beyond.reply.outcome.message,
            "rows 0 to 331: sequence " + std::to_string(sequence.info.id) + " has 330");
  const auto cut = user.control(sequence, wire::ControlOp::kTruncate, 200);
  ASSERT_EQ(cut.items.at(0).code, ErrorCode::kOk);
  sequence.epoch = cut.items[0].epoch;
  sequence.length = 200;
  expect_pulled(sequence, 0, 200);
  wire::Pull stale = header(sequence, 0, 0, 200);
  --stale.epoch;
  EXPECT_EQ(ask(0, sequence, stale).reply.outcome.code, ErrorCode::kStaleEpoch);
  pool.free(sequence.info.id);
  EXPECT_EQ(ask(0, sequence, header(sequence, 0, 0, 10)).reply.outcome.code, ErrorCode::kNotFound);
  pool.expect_all_free();
}

TEST_P(ServicePulls, FollowTheirLeavesWhenAWorkerIsEmptied) {
  UserSequence sequence = user.start(1, 700, 100);
  const int drained = (sequence.info.home + 1) % kWorkers;
  ASSERT_EQ(pool.ask(DrainWorker{.worker = drained, .draining = true}).code, ErrorCode::kOk);
  PoolOutputs outputs;
  const Deadline deadline = Deadline::after(kPatience);
  for (int step = 0; pool.heartbeat().workers[static_cast<std::size_t>(drained)].pages_used > 0;
       ++step) {
    ASSERT_FALSE(deadline.expired());
    if (sequence.length < 790) user.decode(sequence, 1, outputs);
    const std::int64_t begin = step * 64 % 640;
    expect_pulled(sequence, begin, begin + 60);
  }
  expect_pulled(sequence, 0, sequence.length);
  EXPECT_EQ(ask(drained, sequence, header(sequence, 0, 0, 100)).reply.count, 0);
  EXPECT_GT(pool.heartbeat().metrics.moves, 0U);
}

TEST_P(ServicePulls, OfOthersAreRefusedAndCounted) {
  const UserSequence sequence = user.start(1, 100, 4);
  const UserSequence other = user.start(2, 100, 4);
  const PeerId peer = user.peer(0, sequence);
  RawClient stranger;
  const PeerId theirs = stranger.enter(pool.address(0), user.shape(), other.info);
  const auto got = stranger.wait_pull(stranger.send_pull(theirs, header(sequence, 0, 0, 10)));
  EXPECT_EQ(got.reply.outcome.code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(got.rows.empty());
  EXPECT_TRUE(user.client.wait_pull(user.client.send_pull(peer, header(sequence, 0, 0, 10)))
                  .reply.outcome.ok());
  const auto unauthorized = static_cast<std::size_t>(wire::Refusal::kUnauthorized);
  EXPECT_EQ(told([&](const PoolMetrics& m) { return m.refused_rows[unauthorized]; }, 1), 1U);
}

/// Rounds and pulls of one pool at the same time: bits and rows stay, and the counts add up.
TEST_P(ServicePulls, BesideStepsChangeNoBit) {
  UserSequence sequence = user.start(1, 600, 60);
  const UserSequence read = user.start(2, 600, 60);
  std::vector<std::vector<std::byte>> expected;
  for (const int layer : {0, 1}) expected.push_back(user.rows(read, layer, 0, 600));
  std::int64_t rows = 0;
  PoolOutputs outputs;
  for (int step = 0; step < 20; ++step) {
    std::vector<std::uint64_t> asked;
    for (const Extent& extent : read.info.extents) {
      asked.push_back(user.client.send_pull(user.peer(extent.rank, read),
                                            header(read, step % 2, extent.begin, extent.end)));
    }
    user.decode(sequence, 1, outputs);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      const auto got = user.client.wait_pull(asked[i]);
      ASSERT_TRUE(got.reply.outcome.ok()) << got.reply.outcome.message;
      const std::size_t row_bytes = expected[0].size() / 600;
      const auto* from =
          &expected[static_cast<std::size_t>(step % 2)]
                   [static_cast<std::size_t>(read.info.extents[i].begin) * row_bytes];
      EXPECT_TRUE(std::ranges::equal(got.rows, std::span(from, got.rows.size())));
      rows += got.reply.count;
    }
  }
  EXPECT_EQ(rows, 20 * 600);
  EXPECT_EQ(differing_outputs(outputs,
                              outputs_without_service(user.shape(), {{sequence.tag, 600, 20}}, 1)),
            0U);
  EXPECT_EQ(told([](const PoolMetrics& m) { return m.pulled_rows; }, 20 * 600), 20U * 600);
  EXPECT_EQ(pool.heartbeat().metrics.pulled_bytes, 20U * expected[0].size());
}

INSTANTIATE_TEST_SUITE_P(Transports, ServicePulls,
                         testing::Values(TransportChoice::kTcp, TransportChoice::kUcx),
                         [](const auto& info) {
                           return std::string(transport_choice_name(info.param));
                         });

}  // namespace
}  // namespace tributary::test
