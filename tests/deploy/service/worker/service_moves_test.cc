// A pool that serves moves leaves of running sequences; its clients notice nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/deadline.h"
#include "deploy/service/protocol/machine_file.h"
#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

/// Attention of 500 rows takes as long as 8 messages: two sequences on one worker of three gain by
/// an exchange, a pool that fills with whole ones does not.
std::filesystem::path write_costs() {
  Machine machine{.description = "made up",
                  .source = "a test",
                  .backend = "cpu",
                  .communicator = "local",
                  .workers = 3,
                  .threads = 0,
                  .costs = {}};
  machine.costs.attend_byte_ns = 1;
  machine.costs.all_gather_message_us = machine.costs.all_to_all_message_us = 72;
  const std::filesystem::path path =
      std::filesystem::path(testing::TempDir()) / "service_moves_costs.json";
  std::ofstream(path) << nlohmann::ordered_json{{"machine", to_json(machine)}};
  return path;
}

TEST(ServiceMoves, WhatIsLeftWhenOthersHaveGoneIsSpreadAndKeepsItsBits) {
  WorkerOptions options = small_options();
  options.sequencer.move_bytes_per_s = 1e10;
  options.costs = write_costs().string();
  options.leader.lease_ms = 300'000;  // some wait while the others' prompts are pushed
  ServicePool pool(3, options);
  PoolUser user(pool);
  std::vector<UserSequence> sequences;
  std::vector<UserSequence> stay;
  for (std::int64_t tag = 0; tag < 6; ++tag) {
    sequences.push_back(user.start(tag, 500 + tag, 400, SpreadPolicy::kAuto, 600));
  }
  for (const UserSequence& sequence : sequences) {
    if (sequence.info.home == sequences[0].info.home) {
      stay.push_back(sequence);
    } else {
      pool.free(sequence.info.id);
    }
  }
  // One at least: leaves of the first may move before the others come, and these go elsewhere then.
  ASSERT_LT(stay.size(), sequences.size());

  // Before, during and after: a pool plans and copies on its own time, between orders that it has
  // anyway.
  PoolOutputs outputs;
  const auto decode = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      for (UserSequence& sequence : stay) user.decode(sequence, 1, outputs);
    }
  };
  decode(20);
  const Deadline deadline = Deadline::after(kPatience);
  while (pool.heartbeat().metrics.moves == 0) ASSERT_FALSE(deadline.expired());
  decode(20);
  const PoolMetrics metrics = pool.heartbeat().metrics;
  // Rows of 576 bf16 values, 2 layers; whole leaves of one page.
  EXPECT_EQ(metrics.moved_bytes % (64 * 576 * 2), 0U);
  EXPECT_GE(metrics.moved_bytes, metrics.moves * 64 * 576 * 2 * 2);
  EXPECT_EQ(metrics.canary_failures, 0U) << metrics.canary_error;

  std::vector<PoolRequest> decoded;
  for (const UserSequence& sequence : stay) {
    const std::int64_t prompt = sequence.info.prompt_tokens;
    decoded.push_back({sequence.tag, prompt, sequence.length - prompt});
  }
  EXPECT_EQ(differing_outputs(outputs, outputs_without_service(user.shape(), decoded, 1)), 0U);
  // The owners that its rows were pushed to, wherever they are now.
  for (const SequenceInfo& info : pool.card().sequences) {
    for (const UserSequence& sequence : stay) {
      if (sequence.info.id != info.id) continue;
      EXPECT_TRUE(std::ranges::equal(info.extents, sequence.info.extents, {}, &Extent::rank,
                                     &Extent::rank));
    }
  }
  for (const UserSequence& sequence : stay) pool.free(sequence.info.id);
  pool.expect_all_free();
  pool.stop();
}

TEST(ServiceMoves, AnOperatorEmptiesOneWorkerAndNoBitChanges) {
  WorkerOptions options = small_options();
  options.leader.lease_ms = 300'000;
  ServicePool pool(3, options);
  PoolUser user(pool);
  std::vector<UserSequence> sequences;
  for (std::int64_t tag = 0; tag < 2; ++tag) {
    sequences.push_back(user.start(tag, 700 + tag, 400, SpreadPolicy::kAll, 600));
  }
  const int drained = sequences[0].info.home;
  const auto rank = static_cast<std::size_t>(drained);
  const auto held = [&] {
    const Heartbeat::Worker worker = pool.heartbeat().workers[rank];
    return worker.pages_used + worker.pages_reserved + worker.homes;
  };
  ASSERT_GT(pool.heartbeat().workers[rank].pages_used, 3);
  ASSERT_GT(pool.heartbeat().workers[rank].homes, 0);
  PoolOutputs outputs;
  const auto decode = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      for (UserSequence& sequence : sequences) user.decode(sequence, 1, outputs);
    }
  };
  decode(5);
  ASSERT_EQ(pool.ask(DrainWorker{.worker = drained, .draining = true}).code, ErrorCode::kOk);
  EXPECT_TRUE(pool.heartbeat().workers[rank].draining);
  const Deadline deadline = Deadline::after(kPatience);
  for (int step = 0; held() > 0; ++step) {
    ASSERT_FALSE(deadline.expired());
    if (step < 20) decode(1);
  }
  decode(3);
  EXPECT_EQ(held(), 0) << "it grows elsewhere";
  // All rows are on the map of a query: those of the prompt that have moved, those of the new
  // tokens.
  std::vector<std::int64_t> pages(3);
  for (const UserSequence& sequence : sequences) {
    const PoolReply reply = pool.ask(Query{.id = sequence.info.id});
    ASSERT_TRUE(reply.sequence) << reply.message;
    ASSERT_FALSE(reply.sequence->extents.empty());
    EXPECT_GT(sequence.length, sequence.info.prompt_tokens);
    EXPECT_EQ(reply.sequence->extents.back().end, sequence.length);
    for (const Extent& extent : reply.sequence->extents) {
      EXPECT_NE(extent.rank, drained);
      pages[static_cast<std::size_t>(extent.rank)] += ceil_div(extent.end - extent.begin, 64);
    }
  }
  for (std::size_t worker = 0; worker < pages.size(); ++worker) {
    EXPECT_EQ(pool.heartbeat().workers[worker].pages_used, pages[worker]) << worker;
  }
  const UserSequence later = user.start(2, 300, 100, SpreadPolicy::kAuto, 600);
  for (const Extent& extent : later.info.extents) EXPECT_NE(extent.rank, drained);
  EXPECT_NE(later.info.home, drained);
  EXPECT_NE(sequences[0].info.home, drained) << "the client was told";
  decode(5);
  EXPECT_EQ(pool.heartbeat().metrics.canary_failures, 0U);

  const auto refusal = [&](int worker) {
    const PoolReply reply = pool.ask(DrainWorker{.worker = worker, .draining = true});
    EXPECT_NE(reply.code, ErrorCode::kOk);
    return reply.message;
  };
  EXPECT_EQ(refusal(3), "drain of worker 3, the pool has 3");
  const int second = drained == 0 ? 1 : 0;
  EXPECT_EQ(pool.ask(DrainWorker{.worker = second, .draining = true}).code, ErrorCode::kOk);
  EXPECT_EQ(refusal(3 - drained - second),
            fmt::format("worker {} is the last of 3 that takes sequences: drain the pool instead",
                        3 - drained - second));
  for (const int worker : {drained, second}) {
    EXPECT_EQ(pool.ask(DrainWorker{.worker = worker, .draining = false}).code, ErrorCode::kOk);
  }
  EXPECT_FALSE(pool.heartbeat().workers[rank].draining);

  std::vector<PoolRequest> decoded;
  for (const UserSequence& sequence : sequences) {
    const std::int64_t prompt = sequence.info.prompt_tokens;
    decoded.push_back({sequence.tag, prompt, sequence.length - prompt});
    pool.free(sequence.info.id);
  }
  EXPECT_EQ(differing_outputs(outputs, outputs_without_service(user.shape(), decoded, 1)), 0U);
  pool.free(later.info.id);
  pool.expect_all_free();
  pool.stop();
}

TEST(ServiceMoves, WhatMovesNothingEmptiesNobody) {
  WorkerOptions options = small_options();
  options.sequencer.move_bytes_per_s = 0;
  ServicePool pool(2, options);
  const PoolReply reply = pool.ask(DrainWorker{.worker = 1, .draining = true});
  EXPECT_EQ(reply.code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(reply.message,
            "worker 1 would keep what it has: the pool moves nothing (--move-bytes-per-s 0)");
  EXPECT_EQ(pool.ask(DrainWorker{.worker = 1, .draining = false}).code, ErrorCode::kOk);
}

}  // namespace
}  // namespace tributary::test
