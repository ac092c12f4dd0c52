// What a connection may ask for, and when nothing is left that it may.
#include "deploy/service/worker/home/access_check.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "comm/transport/proof.h"
#include "core/base/limits.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {
namespace {

class AccessCheckTest : public testing::Test {
 protected:
  static constexpr PeerId kPeer = 9;
  static constexpr Session kSession{1, 2, 3};
  static constexpr wire::Token kKey{7};
  static constexpr Time kBegin{std::chrono::hours(1)};

  AccessCheckTest() { access_.open(kPeer, {.id = 1, .session = kSession}, kBegin); }

  static wire::Prove::Item proof_of(std::uint64_t id, const Session& session = kSession) {
    return {id, proof::further_proof(wire::access_token(kKey, id), session, id)};
  }
  /// How many are wrong.
  std::ptrdiff_t prove(const wire::Prove& further, Time now = kBegin) {
    const wire::ProveReply reply = access_.prove(kPeer, further, now);
    EXPECT_EQ(reply.items.size(), further.items.size());
    return std::ranges::count(reply.items, ErrorCode::kPermissionDenied,
                              &wire::ProveReply::Item::code);
  }
  void begin(SequenceId id) {
    sequences_.open({.id = id,
                     .epoch = 1,
                     .prompt_tokens = kPageTokens,
                     .limit_tokens = kPageTokens + 1,
                     .length = kPageTokens,
                     .leaves = {{.owner = 0, .pages = {0}}}});
  }
  /// For how long each connection is idle.
  std::vector<Duration> idle(Time now) {
    std::vector<Duration> since;
    for (const auto& connection : access_.idle(now)) since.push_back(connection.since);
    return since;
  }

  IngestTable sequences_{0, 1, kPageTokens};
  AccessCheck access_{kKey, sequences_};
};

TEST_F(AccessCheckTest, WhatWasProvenIsAllowedOnThatConnection) {
  EXPECT_TRUE(access_.allowed(kPeer, 1));
  EXPECT_FALSE(access_.allowed(kPeer, 2));
  EXPECT_FALSE(access_.allowed(8, 1));
  EXPECT_EQ(prove({.items = {proof_of(2), proof_of(3)}}), 0);
  EXPECT_TRUE(access_.allowed(kPeer, 2));
  EXPECT_TRUE(access_.allowed(kPeer, 3));
  access_.close(kPeer);
  EXPECT_FALSE(access_.allowed(kPeer, 1));
  EXPECT_EQ(prove({.items = {proof_of(2)}}), 1);
}

TEST_F(AccessCheckTest, AProofIsOfOneSequenceAndConnection) {
  wire::Prove::Item other = proof_of(2);
  other.sequence_id = 3;
  wire::Prove::Item changed = proof_of(4);
  changed.proof.back() ^= 1;
  EXPECT_EQ(prove({.items = {other, changed, proof_of(5, Session{1, 2, 4}), proof_of(6),
                             proof_of(wire::kPoolItself)}}),
            4);
  for (const std::uint64_t id : {3U, 4U, 5U, 0U}) EXPECT_FALSE(access_.allowed(kPeer, id));
  EXPECT_TRUE(access_.allowed(kPeer, 6));
}

TEST_F(AccessCheckTest, AWrongProofTakesNothingAwayAndIsAnsweredInItsPlace) {
  wire::Prove::Item wrong = proof_of(2);
  wrong.proof.front() ^= 1;
  EXPECT_EQ(prove({.items = {proof_of(2)}}), 0);
  const wire::ProveReply reply =
      access_.prove(kPeer, {.items = {proof_of(3), wrong, proof_of(4)}}, kBegin);
  ASSERT_EQ(reply.items.size(), 3U);
  EXPECT_EQ(reply.items[0].code, ErrorCode::kOk);
  EXPECT_EQ(reply.items[1].code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(reply.items[2].code, ErrorCode::kOk);
  for (const std::uint64_t id : {2U, 3U, 4U}) EXPECT_TRUE(access_.allowed(kPeer, id));
}

TEST_F(AccessCheckTest, AConnectionIsIdleWhenAllItsSequencesHaveEnded) {
  using std::chrono::milliseconds, std::chrono::seconds;
  using Idle = std::vector<Duration>;
  EXPECT_EQ(idle(kBegin + milliseconds(1)), Idle{milliseconds(1)});
  begin(1);
  begin(2);
  EXPECT_EQ(prove({.items = {proof_of(2)}}), 0);
  EXPECT_EQ(idle(kBegin + seconds(2)), Idle{});
  sequences_.close(1, 1);
  EXPECT_EQ(idle(kBegin + seconds(3)), Idle{});
  sequences_.close(2, 2);
  EXPECT_TRUE(access_.allowed(kPeer, 2));  // it is told that the sequence has ended
  EXPECT_EQ(idle(kBegin + seconds(4)), Idle{seconds(1)}) << "since it was last seen in use";
  EXPECT_EQ(prove({.items = {proof_of(3)}}, kBegin + seconds(5)), 0);
  EXPECT_EQ(idle(kBegin + seconds(6)), Idle{seconds(1)}) << "a proof is use";
  access_.open(10, {.id = wire::kPoolItself}, kBegin);
  EXPECT_EQ(access_.idle(kBegin + seconds(6)).size(), 1U);  // not the pool's own
}

TEST_F(AccessCheckTest, WhatHasEndedIsForgottenInTime) {
  begin(1);
  begin(2);
  for (std::uint64_t id = 2; id < 6000; id += 100) {
    wire::Prove further;
    for (std::uint64_t i = id; i < id + 100; ++i) further.items.push_back(proof_of(i));
    EXPECT_EQ(prove(further), 0);
  }
  EXPECT_FALSE(access_.allowed(kPeer, 3));
  EXPECT_TRUE(access_.allowed(kPeer, 1));
  EXPECT_TRUE(access_.allowed(kPeer, 2));
  EXPECT_TRUE(access_.allowed(kPeer, 6001));
}

}  // namespace
}  // namespace tributary
