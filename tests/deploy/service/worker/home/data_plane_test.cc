// Connections of a data plane that end while messages on them are still in transit.
#include "deploy/service/worker/home/data_plane.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/interface/manual_clock.h"
#include "deploy/service/protocol/layer_bytes.h"
#include "tests/deploy/service/worker/plane_rank.h"
#include "tests/deploy/service/worker/played_transport.h"

namespace tributary::test {
namespace {

using wire::MessageType;

class DataPlaneTest : public testing::Test {
 protected:
  static constexpr PeerId kPeer = 9;
  static constexpr SequenceId kSequence = 7;

  DataPlane& open(bool serves = true) {
    rank_.open(
        "",
        [this](const TransportConfig&, TransportHandler&) {
          auto transport = std::make_unique<PlayedTransport>();
          transport_ = transport.get();
          return transport;
        },
        kHello, serves);
    return *rank_.plane;
  }

  void hello(PeerId peer = kPeer) {
    const wire::Hello hello{.shape = rank_.model.served};
    (void)rank_.plane->on_message(peer, static_cast<std::uint16_t>(MessageType::kHello),
                                  encode(hello), 0);
  }

  std::optional<Landing> say(MessageType type, const std::vector<std::byte>& header,
                             std::size_t payload_bytes = 0) const {
    return rank_.plane->on_message(kPeer, static_cast<std::uint16_t>(type), header, payload_bytes);
  }

  void begin(SequenceId id, int home) {
    rank_.ingest.open({.id = id,
                       .epoch = 1,
                       .home = home,
                       .prompt_tokens = kPageTokens,
                       .limit_tokens = kPageTokens + 1,
                       .length = kPageTokens,
                       .leaves = {{.owner = 0, .pages = {0}}}});
  }

  /// As the next heartbeat reports.
  std::uint64_t limited(wire::Limit limit) {
    rank_.plane->tick(clock_.now());
    return rank_.inbox.heard({}).at(0).beat.limited.at(static_cast<std::size_t>(limit));
  }
  std::uint64_t connections() {
    rank_.plane->tick(clock_.now());
    return rank_.inbox.heard({}).at(0).beat.connections;
  }

  static constexpr std::chrono::seconds kHello{5};

  ManualClock clock_{Time(std::chrono::hours(1))};
  PlayedTransport* transport_ = nullptr;
  PlaneRank rank_{0, 2, clock_};
};

TEST_F(DataPlaneTest, CountsItsClients) {
  DataPlane& plane = open();
  EXPECT_EQ(connections(), 0U);
  hello();
  EXPECT_EQ(transport_->sent, std::vector{MessageType::kWelcome});
  EXPECT_EQ(connections(), 1U);
  plane.on_disconnect(kPeer, {});
  EXPECT_EQ(connections(), 0U);
}

TEST_F(DataPlaneTest, LetsNoClientsInBeforeItKnowsTheirSequences) {
  DataPlane& plane = open(false);
  hello();
  EXPECT_TRUE(transport_->sent.empty());
  EXPECT_TRUE(transport_->gone.contains(kPeer)) << "to try again";
  plane.serve();
  hello(kPeer + 1);
  EXPECT_EQ(transport_->sent, std::vector{MessageType::kWelcome});
}

TEST_F(DataPlaneTest, CountsWhenNobodyIsLetIn) {
  DataPlane& plane = open();
  plane.on_accepting_paused({ErrorCode::kUnavailable, "no descriptors"});
  plane.on_accepting_paused({ErrorCode::kUnavailable, "no descriptors"});
  plane.tick(clock_.now());
  EXPECT_EQ(rank_.inbox.heard({}).at(0).beat.accept_pauses, 2U);
}

TEST_F(DataPlaneTest, AHelloThatCrossesTheEndOfALateConnectionLeavesNothing) {
  DataPlane& plane = open();
  // A late message of a client that was refused, and has been told why.
  const wire::Hello stranger{.version = 9, .shape = {}};
  (void)plane.on_message(kPeer, static_cast<std::uint16_t>(MessageType::kHello), encode(stranger),
                         0);
  transport_->on_its_way = [&](PeerId) { hello(); };
  clock_.advance(kHello + Duration(1));
  plane.tick(clock_.now());
  EXPECT_TRUE(transport_->gone.contains(kPeer));
  EXPECT_EQ(transport_->sent, std::vector{MessageType::kWelcome});  // the refusal
  EXPECT_EQ(connections(), 0U);
}

TEST_F(DataPlaneTest, AHelloThatCrossesTheEndOfALateSenderLeavesNothing) {
  DataPlane& plane = open();
  begin(kSequence, 0);
  plane.on_open(kPeer, {.id = kSequence});
  hello();
  const wire::Rows rows{.sequence_id = kSequence, .epoch = 1, .count = 1};
  const auto landing = plane.on_message(kPeer, static_cast<std::uint16_t>(MessageType::kRows),
                                        encode(rows), rank_.cache->layout().row_bytes());
  ASSERT_TRUE(landing);
  rank_.ingest.close(kSequence, 5);
  plane.tick(clock_.now());  // the transfer may still finish
  transport_->on_its_way = [&](PeerId) { hello(); };
  plane.tick(clock_.now());
  EXPECT_TRUE(transport_->gone.contains(kPeer));
  landing->done({ErrorCode::kUnavailable, "closed"});
  EXPECT_EQ(connections(), 0U);
}

TEST_F(DataPlaneTest, AHelloBehindABrokenMessageLeavesNothing) {
  DataPlane& plane = open();
  transport_->on_its_way = [&](PeerId) { hello(); };
  (void)plane.on_message(kPeer, static_cast<std::uint16_t>(MessageType::kRows), {}, 0);
  EXPECT_TRUE(transport_->gone.contains(kPeer));
  EXPECT_TRUE(transport_->sent.empty());
  EXPECT_EQ(connections(), 0U);
}

TEST_F(DataPlaneTest, WhoHasProvenASequenceAndSaysNothingIsSentAway) {
  DataPlane& plane = open();
  begin(kSequence, 0);
  plane.on_open(kPeer, {.id = kSequence});
  clock_.advance(kHello);
  EXPECT_EQ(limited(wire::Limit::kHello), 0U);
  clock_.advance(Duration(1));
  EXPECT_EQ(limited(wire::Limit::kHello), 1U);
  EXPECT_TRUE(transport_->gone.contains(kPeer));
  EXPECT_EQ(limited(wire::Limit::kHello), 1U);
}

TEST_F(DataPlaneTest, AClientIsToldThatItsSequencesHaveEndedBeforeItIsSentAway) {
  using std::chrono::milliseconds;
  DataPlane& plane = open();
  begin(kSequence, 0);
  plane.on_open(kPeer, {.id = kSequence});
  hello();
  transport_->sent.clear();
  const auto tick_after = [&](milliseconds later) {
    clock_.advance(later);
    plane.tick(clock_.now());
  };
  tick_after(milliseconds(500));
  rank_.ingest.close(kSequence, 5);
  tick_after(milliseconds(399));
  EXPECT_TRUE(transport_->sent.empty());
  tick_after(milliseconds(1));
  EXPECT_EQ(transport_->sent, std::vector{MessageType::kNotUsed});
  tick_after(milliseconds(499));
  EXPECT_FALSE(transport_->gone.contains(kPeer));
  tick_after(milliseconds(1));
  EXPECT_TRUE(transport_->gone.contains(kPeer));
  EXPECT_EQ(limited(wire::Limit::kEndedSequence), 1U);
}

TEST_F(DataPlaneTest, OnlyWhoHasProvenThePoolJoinsAndOnlyOnce) {
  DataPlane& plane = open();
  const auto join = [&](PeerId peer, std::uint64_t proven) {
    plane.on_open(peer, {.id = proven});
    (void)plane.on_message(peer, static_cast<std::uint16_t>(MessageType::kJoin),
                           encode(wire::Join{.rank = 1}), 0);
    return !transport_->gone.contains(peer);
  };
  EXPECT_FALSE(join(1, kSequence));
  EXPECT_TRUE(join(2, wire::kPoolItself));
  EXPECT_FALSE(join(3, wire::kPoolItself));
  EXPECT_TRUE(rank_.inbox.lost().empty());
  plane.on_disconnect(2, {ErrorCode::kUnavailable, "closed"});
  ASSERT_EQ(rank_.inbox.lost().size(), 1U);
  EXPECT_EQ(rank_.inbox.lost().front().rank, 1);
}

TEST_F(DataPlaneTest, RoomForARequestIsMadeForSequencesOfThisHomeAlone) {
  PoolShape& shape = rank_.model.served;
  shape.heads = 2;
  shape.kv_lora_rank = 16;
  shape.qk_rope_head_dim = 8;
  shape.row_format = RowFormat::kF32;
  shape.query_dtype = DType::kF32;
  DataPlane& plane = open();
  plane.on_open(kPeer, {.id = kSequence});
  hello();
  const wire::TokenBytes bytes = wire::token_bytes(shape, wire::LayerMode::kAttend);
  const auto ask = [&](SequenceId id) {
    const wire::LayerRequest request{
        .deadline_us = 1'000'000,
        .part = {},
        .items = {{.id = id, .tokens = 1, .epoch = 1, .base_length = kPageTokens}}};
    return say(MessageType::kLayerRequest, encode(request), bytes.input());
  };
  EXPECT_FALSE(ask(kSequence));  // it is not here
  begin(kSequence, 1);
  EXPECT_FALSE(ask(kSequence));  // it has another home
  rank_.ingest.close(kSequence, 1);
  begin(kSequence, 0);
  begin(8, 0);
  EXPECT_FALSE(ask(8));  // it was not proven
  EXPECT_EQ(rank_.queue.bytes(), 0U);
  const auto landing = ask(kSequence);
  ASSERT_TRUE(landing);
  EXPECT_EQ(rank_.queue.bytes(), bytes.input() + bytes.output);
  EXPECT_FALSE(ask(kSequence));  // it has more than its share already
  EXPECT_EQ(limited(wire::Limit::kRequestBytes), 1U);
  landing->done({ErrorCode::kUnavailable, "closed"});
}

TEST_F(DataPlaneTest, PullsOfSequencesThatWereProvenWaitForTheWorkersThread) {
  DataPlane& plane = open();
  plane.on_open(kPeer, {.id = kSequence});
  hello();
  const auto most =
      static_cast<std::int64_t>(RowsSender::kMaxPullBytes / rank_.cache->layout().row_bytes());
  const auto pull = [&](SequenceId id, std::int64_t rows) {
    (void)say(
        MessageType::kPull,
        encode(wire::Pull{.sequence_id = id, .epoch = 1, .deadline_us = 1'000'000, .count = rows}));
  };
  const std::size_t before = transport_->sent.size();
  pull(8, 1);
  EXPECT_EQ(transport_->sent.size(), before + 1) << "refused at once: it was not proven";
  pull(kSequence, most);
  EXPECT_EQ(transport_->sent.size(), before + 1);
  pull(kSequence, 1);
  EXPECT_EQ(transport_->sent.size(), before + 2) << "it has its share already";
  EXPECT_EQ(limited(wire::Limit::kPulledBytes), 1U);
  const auto unauthorized = static_cast<std::size_t>(wire::Refusal::kUnauthorized);
  EXPECT_EQ(rank_.inbox.heard({}).at(0).beat.refused.at(unauthorized), 1U);
  EXPECT_FALSE(rank_.pulls.serve()) << "the sequence is not in the table";
  EXPECT_EQ(transport_->sent.size(), before + 3);
}

}  // namespace
}  // namespace tributary::test
