// A pool for its host's own use: on rank 0 alone somebody uses it, and what ends the one ends the
// other.
#include "deploy/local/hosted_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/error.h"

namespace tributary {
namespace {

constexpr int kWorkers = 3;

WorkerOptions hosted_options() {
  WorkerOptions options;
  options.kv_gib = 0.005;
  options.leaf_tokens = 64;
  options.threads = 1;
  return options;
}

/// Returns how it ended on each rank.
std::vector<Status> host(const WorkerOptions& options, const PoolUse& use) {
  std::vector<Status> outcomes(kWorkers);
  const auto network = std::make_shared<LocalNetwork>();
  run_ranks(kWorkers, [&](Communicator& communicator) {
    outcomes[static_cast<std::size_t>(communicator.rank())] =
        status_of([&] { host_pool(options, communicator, network, use); });
  });
  return outcomes;
}

TEST(HostedPool, LastsAsLongAsItsUseAndReportsItsRounds) {
  std::atomic<int> uses = 0;
  std::atomic<std::int64_t> rounds = 0;
  std::atomic<std::int64_t> pages = 0;
  const auto use = [&](const HostedPool& pool) {
    ++uses;
    EXPECT_EQ(pool.card().workers.size(), std::size_t{kWorkers});
    EXPECT_EQ(pool.card().communicator, "threads");
    const auto client = pool.make_client();
    SequenceHandle sequence =
        client->admit({.prompt_tokens = 0, .max_new_tokens = 2, .idempotency_key = {}});
    const std::vector<std::byte> record(sequence.shape.token_record_bytes());
    std::vector<float> state(sequence.shape.state_shape().record_floats());
    const LayerItem item{.sequence = &sequence,
                         .tokens = 1,
                         .query = {record.data()},
                         .row = {record.data()},
                         .output = state.data()};
    client->attend(std::span(&item, 1), 0);
    SequenceHandle* const handle = &sequence;
    client->commit(std::span(&handle, 1), std::array{1});
    EXPECT_EQ(rounds, 1) << "told before the commit is answered";
    client->free(sequence);
    for (const auto& worker : pool.heartbeat().workers) EXPECT_EQ(worker.pages_used, 0);
  };
  const auto round = [&](const RoundReport& report, std::size_t items, std::int64_t used) {
    rounds += report.rounds;
    pages = used;
    EXPECT_EQ(items, 1U);
  };
  for (const Status& outcome : host(hosted_options(), {.run = use, .round = round})) {
    EXPECT_TRUE(outcome.ok()) << outcome.message();
  }
  EXPECT_EQ(uses, 1);
  EXPECT_EQ(pages, 1);
}

TEST(HostedPool, AFailureOfItsUserIsThrownOnRank0) {
  const auto outcomes = host(hosted_options(), {.run = [](const HostedPool&) {
                               fail(ErrorCode::kTooLarge, "the user has had enough");
                             }});
  EXPECT_EQ(outcomes[0].code(), ErrorCode::kTooLarge);
  EXPECT_EQ(outcomes[0].message(), "the user has had enough");
  for (int rank = 1; rank < kWorkers; ++rank) {
    EXPECT_TRUE(outcomes[static_cast<std::size_t>(rank)].ok());
  }
}

TEST(HostedPool, OneThatCannotStartIsNotUsed) {
  WorkerOptions options = hosted_options();
  options.backend = "abacus";
  const auto outcomes =
      host(options, {.run = [](const HostedPool&) { ADD_FAILURE() << "there is no pool"; }});
  for (const Status& outcome : outcomes) {
    EXPECT_EQ(outcome.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(outcome.message(), testing::HasSubstr("'abacus'"));
  }
}

}  // namespace
}  // namespace tributary
