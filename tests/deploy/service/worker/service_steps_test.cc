// Steps as transactions at a pool that serves: commit, abort, retry, truncate, deadlines, leases.
#include <gtest/gtest.h>

#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

using wire::ControlOp;

class ServiceSteps : public testing::Test {
 protected:
  ErrorCode attend(const UserSequence& sequence, std::int32_t tokens, std::int32_t layer) {
    return user.attend({{&sequence, tokens, layer}}).reply.items.at(0);
  }

  ServicePool pool{2, small_options()};
  PoolUser user{pool};
};

TEST_F(ServiceSteps, CommitAbortRetry) {
  UserSequence sequence = user.start(1, 70, 8);
  EXPECT_EQ(attend(sequence, 2, 0), ErrorCode::kOk);
  const auto early = user.control(sequence, ControlOp::kCommit, 71);
  EXPECT_EQ(early.items.at(0).code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(early.message, "the open step at 70 has not run layer 1");
  EXPECT_EQ(early.items.at(0).length, 70);
  EXPECT_EQ(attend(sequence, 2, 0), ErrorCode::kOk);  // again
  EXPECT_EQ(attend(sequence, 2, 1), ErrorCode::kOk);
  EXPECT_EQ(user.control(sequence, ControlOp::kCommit, 70).items.at(0).length, 70);  // abort
  EXPECT_EQ(attend(sequence, 3, 1), ErrorCode::kOk);                                 // a new step
  EXPECT_EQ(attend(sequence, 3, 0), ErrorCode::kOk);
  const auto committed = user.control(sequence, ControlOp::kCommit, 71);
  EXPECT_EQ(committed.items.at(0).code, ErrorCode::kOk) << committed.message;
  EXPECT_EQ(committed.items.at(0).length, 71);
  // The reply was lost: the client sends the same again.
  EXPECT_EQ(user.control(sequence, ControlOp::kCommit, 71).items.at(0).code, ErrorCode::kOk);
  sequence.length = 71;
  // A step whose commit never arrived is committed by the next one.
  PoolOutputs outputs;
  for (std::int32_t layer = 0; layer < 2; ++layer)
    EXPECT_EQ(attend(sequence, 2, layer), ErrorCode::kOk);
  sequence.length = 73;
  user.decode(sequence, 1, outputs);
  EXPECT_EQ(sequence.length, 74);
  const auto expected = outputs_without_service(user.shape(), {{1, 70, 8}}, 1);
  EXPECT_EQ(outputs.at({1, 0, 73}), expected.at({1, 0, 73}));
  EXPECT_EQ(outputs.at({1, 1, 73}), expected.at({1, 1, 73}));
  const PoolMetrics metrics = pool.heartbeat().metrics;
  EXPECT_EQ(metrics.steps, 3U);
  EXPECT_EQ(metrics.tokens, 4U);
  EXPECT_EQ(metrics.aborted_steps, 1U);
}

TEST_F(ServiceSteps, TruncateBeginsAnEpoch) {
  UserSequence sequence = user.start(1, 130, 8);
  PoolOutputs before;
  PoolOutputs after;
  const UserSequence old = sequence;
  for (int i = 0; i < 4; ++i) user.decode(sequence, 1, before);
  const auto reply = user.control(sequence, ControlOp::kTruncate, 130);
  ASSERT_EQ(reply.items.at(0).code, ErrorCode::kOk) << reply.message;
  EXPECT_EQ(reply.items.at(0).epoch, 2U);
  EXPECT_EQ(reply.items.at(0).length, 130);
  EXPECT_EQ(attend(old, 1, 0), ErrorCode::kStaleEpoch);
  const auto stale = user.control(old, ControlOp::kCommit, 130);
  EXPECT_EQ(stale.items.at(0).code, ErrorCode::kStaleEpoch);
  EXPECT_EQ(stale.items.at(0).epoch, 2U);
  sequence.epoch = 2;
  sequence.length = 130;
  for (int i = 0; i < 4; ++i) user.decode(sequence, 1, after);
  EXPECT_EQ(differing_outputs(before, after), 0U);
}

TEST_F(ServiceSteps, ALeaderTellsWhatIsMissingAndFrees) {
  const UserSequence sequence = user.admit(1, 10, 8);
  const auto missing = user.control(sequence, ControlOp::kReady, 0);
  EXPECT_EQ(missing.items.at(0).code, ErrorCode::kUnavailable);
  EXPECT_NE(missing.message.find("first missing layer 0 position 0"), std::string::npos)
      << missing.message;
  for (const int layer : {0, 1}) EXPECT_TRUE(user.push(sequence, layer, 0, 10).empty());
  while (user.control(sequence, ControlOp::kReady, 0).items.at(0).code != ErrorCode::kOk) {
  }
  EXPECT_EQ(attend(sequence, 1, 0), ErrorCode::kOk);
  EXPECT_EQ(user.control(sequence, ControlOp::kFree, 0).items.at(0).code, ErrorCode::kOk);
  pool.expect_all_free();
  EXPECT_EQ(user.control(sequence, ControlOp::kFree, 0).items.at(0).code, ErrorCode::kNotFound);
  const SequenceEnded word = pool.wait_ended();
  EXPECT_EQ(word.id, sequence.info.id);
  EXPECT_EQ(word.reason, "freed");
  EXPECT_EQ(pool.heartbeat().metrics.freed, 1U);
}

TEST_F(ServiceSteps, ASequenceThatIsExtendedDecodesOn) {
  UserSequence sequence = user.start(1, 60, 2);
  const auto expected = outputs_without_service(user.shape(), {{1, 60, 20}}, 4);
  PoolOutputs outputs;
  EXPECT_EQ(attend(sequence, 4, 0), ErrorCode::kInvalidArgument) << "more than was admitted";
  EXPECT_EQ(user.control(sequence, ControlOp::kExtend, 80).items.at(0).code, ErrorCode::kOk);
  while (sequence.length < 80) user.decode(sequence, 4, outputs);
  EXPECT_EQ(differing_outputs(outputs, expected), 0U);
  EXPECT_EQ(attend(sequence, 1, 0), ErrorCode::kInvalidArgument);
  const std::int64_t held = pool.held_pages();
  const auto full = user.control(sequence, ControlOp::kExtend, std::int64_t{1} << 30);
  EXPECT_EQ(full.items.at(0).code, ErrorCode::kTooLarge) << full.message;
  EXPECT_EQ(pool.held_pages(), held);
  EXPECT_EQ(user.control(sequence, ControlOp::kExtend, -1).items.at(0).code, ErrorCode::kOk)
      << "it has more";
}

TEST_F(ServiceSteps, AnItemWhoseDeadlineHasPassedIsRefused) {
  const UserSequence sequence = user.start(1, 10, 8);
  wire::LayerRequest round = user.round_header({{&sequence, 1, 0}});
  round.deadline_us = 0;
  const PeerId peer = user.peer(sequence.info.home, sequence);
  const auto late = user.client.wait_round(
      user.client.send_round(peer, round, user.round_payload({{&sequence, 1, 0}})));
  EXPECT_EQ(late.reply.items.at(0), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(attend(sequence, 1, 0), ErrorCode::kOk);
}

TEST_F(ServiceSteps, RoundsThatCannotRun) {
  const UserSequence sequence = user.start(1, 10, 8);
  const PeerId peer = user.peer(sequence.info.home, sequence);
  const std::vector<PoolUser::Part> parts{{&sequence, 1, 0}};
  const auto send = [&](const wire::LayerRequest& round, std::optional<std::uint32_t> crc = {}) {
    return user.client
        .wait_round(user.client.send_round(peer, round, user.round_payload(parts), crc))
        .reply;
  };
  wire::LayerRequest round = user.round_header(parts);
  EXPECT_EQ(send(round, 1).items.at(0), ErrorCode::kCorrupt);
  round.mode = wire::LayerMode::kForward;
  EXPECT_EQ(send(round).message, "this pool has no weights: it serves attend alone");
  round = user.round_header(parts);
  round.items[0].tokens = 2;
  EXPECT_EQ(send(round).items.at(0), ErrorCode::kInvalidArgument);  // the payload has one
  // The home of the sequence is the other worker.
  const PeerId elsewhere = user.peer(1 - sequence.info.home, sequence);
  const auto reply = user.client.wait_round(
      user.client.send_round(elsewhere, user.round_header(parts), user.round_payload(parts)));
  EXPECT_EQ(reply.reply.items.at(0), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(attend(sequence, 1, 0), ErrorCode::kOk);
}

TEST_F(ServiceSteps, OneBadItemOfARoundFailsAlone) {
  const UserSequence good = user.start(1, 70, 8);
  const UserSequence victim = user.admit(2, 70, 8);
  UserSequence stolen = victim;
  stolen.info.token = good.info.token;
  stolen.info.home = good.info.home;
  const auto expected = outputs_without_service(user.shape(), {{1, 70, 8}}, 1);
  for (const std::size_t bad : {0U, 1U}) {
    std::vector<PoolUser::Part> parts(2, {&good, 1, 1});
    parts[bad] = {&stolen, 2, 1};
    const auto answer = user.attend(parts);
    EXPECT_EQ(answer.reply.items.at(bad), ErrorCode::kPermissionDenied);
    EXPECT_EQ(answer.reply.items.at(1 - bad), ErrorCode::kOk);
    EXPECT_EQ(answer.reply.message,
              fmt::format("the connection has not proven sequence {}", victim.info.id));
    PoolOutputs outputs;
    user.collect({{&good, 1, 1}}, answer.floats(), outputs);
    EXPECT_EQ(outputs.at({1, 1, 70}), expected.at({1, 1, 70}));
  }
  const auto no_layer = user.attend({{&good, 1, 2}, {&good, 1, 0}});
  EXPECT_EQ(no_layer.reply.items, (std::vector{ErrorCode::kInvalidArgument, ErrorCode::kOk}));
  EXPECT_EQ(no_layer.reply.message, "layer 2, expected 0 .. 1");
  const auto none = user.attend({{&stolen, 1, 0}, {&good, 1, 2}});
  EXPECT_EQ(none.reply.items,
            (std::vector{ErrorCode::kPermissionDenied, ErrorCode::kInvalidArgument}));
  EXPECT_TRUE(none.output.empty());
  // A refusal by the leader is reported by the item's place in the client's request, not by its
  // place among the items that reached the leader.
  UserSequence stale = good;
  stale.epoch = 7;
  EXPECT_EQ(user.attend({{&stolen, 1, 0}, {&good, 1, 0}, {&stale, 1, 0}}).reply.items,
            (std::vector{ErrorCode::kPermissionDenied, ErrorCode::kOk, ErrorCode::kStaleEpoch}));
}

TEST_F(ServiceSteps, AClientThatGoesInTheMiddleLeavesNothingBehind) {
  const UserSequence sequence = user.start(1, 10, 8);
  const UserSequence other = user.start(2, 10, 8);
  {
    PoolUser gone(pool);
    (void)gone.send_attend({{&sequence, 1, 0}});
  }
  EXPECT_EQ(attend(other, 1, 0), ErrorCode::kOk);
  // Its item has run, or never arrived; another connection can go on in both cases.
  EXPECT_EQ(user.control(sequence, ControlOp::kCommit, 10).items.at(0).code, ErrorCode::kOk);
  EXPECT_EQ(attend(sequence, 1, 0), ErrorCode::kOk);
  pool.free(sequence.info.id);
  pool.free(other.info.id);
  EXPECT_EQ(attend(sequence, 1, 1), ErrorCode::kNotFound);
  pool.expect_all_free();
}

/// When leases end is tested in simulated time: request_desk_test, leader_test.
TEST(ServiceLeases, ASilentClientsSequenceIsFreed) {
  WorkerOptions options = small_options();
  options.leader.lease_ms = 1000;
  ServicePool pool(2, options);
  const SequenceId silent = pool.admit(0, 8).id;
  const SequenceEnded word = pool.wait_ended();
  EXPECT_EQ(word.id, silent);
  EXPECT_EQ(word.reason, "lease_expired");
  pool.expect_all_free();
  EXPECT_EQ(pool.heartbeat().metrics.leases_expired, 1U);
}

}  // namespace
}  // namespace tributary::test
