// A home in simulated time: which requests go on to the leader, and what the others are told.
#include "deploy/service/worker/home/home.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/interface/manual_clock.h"
#include "deploy/service/protocol/layer_bytes.h"
#include "tests/deploy/service/worker/plane_rank.h"
#include "tests/deploy/service/worker/played_transport.h"

namespace tributary::test {
namespace {

using std::chrono::microseconds;
using wire::LayerMode;

class HomeTest : public testing::Test {
 protected:
  static constexpr PeerId kPeer = 9;
  static constexpr PeerId kOther = 10;
  static constexpr SequenceId kMine = 7;
  static constexpr SequenceId kTheirs = 8;    // its home is worker 1
  static constexpr SequenceId kUnproven = 5;  // by kPeer; kOther has proven it

  void SetUp() override {
    PoolShape& shape = rank_.model.served;
    shape.heads = 1;
    shape.kv_lora_rank = 2;
    shape.qk_rope_head_dim = 0;
    shape.row_format = RowFormat::kF32;
    shape.query_dtype = DType::kF32;
    shape.layers = 2;
    rank_.peers.open([this]() -> Transport& { return transport_; });
    begin(kMine, 0);
    begin(kTheirs, 1);
    begin(kUnproven, 0);
    rank_.access.open(kPeer, {.id = kMine}, clock_.now());
    rank_.access.open(kOther, {.id = kUnproven}, clock_.now());
  }

  void begin(SequenceId id, int home) {
    rank_.ingest.open({.id = id,
                       .epoch = 1,
                       .home = home,
                       .prompt_tokens = kPageTokens,
                       .limit_tokens = kPageTokens + 20,
                       .length = kPageTokens,
                       .leaves = {{.owner = 0, .pages = {0}}}});
  }
  static StepItem item(SequenceId id, std::int32_t tokens = 1, std::int32_t layer = 0) {
    return {.id = id, .tokens = tokens, .layer = layer, .epoch = 1, .base_length = kPageTokens};
  }
  [[nodiscard]] std::size_t bytes_of(const std::vector<StepItem>& items) const {
    std::size_t tokens = 0;
    for (const StepItem& one : items) tokens += static_cast<std::size_t>(one.tokens);
    return tokens * wire::token_bytes(rank_.model.served, LayerMode::kAttend).input();
  }
  /// The request of `items`, with a payload of zeros, up to its header.
  std::optional<Landing> announce(const std::vector<StepItem>& items,
                                  std::uint32_t deadline_us = 1'000'000) {
    const std::vector<std::byte> payload(bytes_of(items));
    return rank_.home.receive(kPeer,
                              {.request = 3,
                               .deadline_us = deadline_us,
                               .crc32c = wire::crc32c(payload),
                               .part = {},
                               .items = items},
                              payload.size());
  }
  static void arrive(const std::optional<Landing>& landing, std::byte value = {}) {
    for (const auto piece : landing.value().pieces) {
      std::ranges::fill(piece, value);
      landing->inspect(piece);
    }
    landing->done({});
  }
  /// What the leader has got.
  LeaderMail mail() {
    LeaderMail taken;
    rank_.inbox.take(taken);
    return taken;
  }
  /// The one answer that the client has got.
  wire::LayerReply reply() {
    const auto replies = transport_.take<wire::LayerReply>();
    EXPECT_EQ(replies.size(), 1U);
    return replies.empty() ? wire::LayerReply{} : replies[0];
  }

  ManualClock clock_{Time(std::chrono::hours(1))};
  PlayedTransport transport_;
  PlaneRank rank_{0, 2, clock_};
};

TEST_F(HomeTest, TheLeaderGetsTheItemsWhenTheirPayloadIsHereWithTheTimeThatIsLeft) {
  const auto landing = announce({item(kMine, 2)}, 1000);
  EXPECT_TRUE(mail().empty());
  clock_.advance(microseconds(400));
  arrive(landing);
  const LeaderMail got = mail();
  ASSERT_EQ(got.items.size(), 1U);
  EXPECT_EQ(got.items[0].rank, 0);
  EXPECT_EQ(got.items[0].arrival, clock_.now());
  EXPECT_EQ(got.items[0].items.deadline_us, 600U);
  ASSERT_EQ(got.items[0].items.items.size(), 1U);
  EXPECT_EQ(got.items[0].items.items[0].tokens, 2);
  EXPECT_TRUE(transport_.sent.empty());
}

TEST_F(HomeTest, APayloadThatComesAtTheDeadlineIsTooLate) {
  auto landing = announce({item(kMine)}, 1000);
  clock_.advance(microseconds(999));
  arrive(landing);
  EXPECT_EQ(mail().items.at(0).items.deadline_us, 1U);
  landing = announce({item(kMine, 1, 1)}, 1000);
  clock_.advance(microseconds(1000));
  arrive(landing);
  EXPECT_TRUE(mail().empty());
  const wire::LayerReply late = reply();
  EXPECT_EQ(late.items, std::vector{ErrorCode::kDeadlineExceeded});
  EXPECT_EQ(late.message, "the payload came after the request's deadline");
}

TEST_F(HomeTest, APayloadWithAWrongChecksumIsRefused) {
  arrive(announce({item(kMine, 3)}), std::byte{1});
  EXPECT_TRUE(mail().empty());
  EXPECT_EQ(reply().items, std::vector{ErrorCode::kCorrupt});
  EXPECT_EQ(rank_.queue.bytes(), 0U);
}

TEST_F(HomeTest, AClientThatGoesAwayLeavesNothing) {
  const auto landing = announce({item(kMine)});
  EXPECT_GT(rank_.queue.bytes(), 0U);
  landing->done({ErrorCode::kUnavailable, "closed"});
  EXPECT_TRUE(mail().empty());
  EXPECT_TRUE(transport_.sent.empty());
}

TEST_F(HomeTest, ItemsAreRefusedOneByOne) {
  arrive(announce({item(kTheirs), item(kMine), item(kUnproven), item(kMine, 1, 2)}));
  const LeaderMail got = mail();
  ASSERT_EQ(got.items.size(), 1U);
  std::vector<std::int32_t> tokens;
  for (const StepItem& one : got.items[0].items.items) tokens.push_back(one.tokens);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{0, 1, 0, 0}));
  EXPECT_TRUE(transport_.sent.empty()) << "one may still run";
  rank_.local.refuse(0, {.ticket = got.items[0].items.ticket,
                         .items = {1},
                         .outcome = {ErrorCode::kDeadlineExceeded, "late"}});
  const wire::LayerReply said = reply();
  EXPECT_EQ(said.items, (std::vector{ErrorCode::kPermissionDenied, ErrorCode::kDeadlineExceeded,
                                     ErrorCode::kPermissionDenied, ErrorCode::kInvalidArgument}));
  EXPECT_EQ(said.message, "the connection has not proven sequence 8");
}

TEST_F(HomeTest, ASequenceOfAnotherHomeOrOfNoneIsNamed) {
  rank_.access.open(kPeer, {.id = kTheirs}, clock_.now());
  EXPECT_FALSE(announce({item(kTheirs)}));
  const wire::LayerReply moved = reply();
  EXPECT_EQ(moved.message, "worker 0 is not the home of sequence 8: worker 1 is");
  ASSERT_EQ(moved.moved.size(), 1U);
  EXPECT_EQ(moved.moved[0].item, 0U);
  EXPECT_EQ(moved.moved[0].home, 1);
  rank_.access.open(kPeer, {.id = 99}, clock_.now());
  EXPECT_FALSE(announce({item(99)}));
  const wire::LayerReply said = reply();
  EXPECT_EQ(said.items, std::vector{ErrorCode::kNotFound});
  EXPECT_EQ(said.message, "sequence 99: not here");
  EXPECT_TRUE(said.moved.empty());
}

TEST_F(HomeTest, ARequestWhosePayloadCannotBeLocatedIsRefusedAsAWhole) {
  const auto message_of_request = [&](const wire::LayerRequest& request, std::size_t bytes) {
    EXPECT_FALSE(rank_.home.receive(kPeer, request, bytes));
    return reply().message;
  };
  EXPECT_EQ(message_of_request({.part = {}, .items = {}}, 0), "a request without items");
  EXPECT_EQ(message_of_request({.part = {}, .items = {item(kMine, 0)}}, 0),
            "0 new tokens, expected 1 .. 16");
  EXPECT_EQ(message_of_request({.part = {}, .items = {item(kMine, 17)}}, 0),
            "17 new tokens, expected 1 .. 16");
  EXPECT_EQ(message_of_request({.part = {}, .items = {item(kMine)}}, 15),
            "a payload of 15 bytes, 1 tokens take 16");
  EXPECT_EQ(
      message_of_request({.mode = LayerMode::kForward, .part = {}, .items = {item(kMine)}}, 16),
      "this pool has no weights: it serves attend alone");
  EXPECT_TRUE(mail().empty());
  EXPECT_EQ(rank_.queue.bytes(), 0U);
}

TEST_F(HomeTest, TooManyWaitingRequestsAreRefused) {
  const auto first = announce({item(kMine, 16)});
  ASSERT_TRUE(first);
  EXPECT_FALSE(announce({item(kMine, 1, 1)}));
  EXPECT_EQ(reply().items, std::vector{ErrorCode::kPoolFull});
  EXPECT_EQ(rank_.queue.refused(), 1U);
}

TEST_F(HomeTest, ALeaderThatIsBehindRefusesWhatComes) {
  for (std::size_t i = 0; i < LeaderInbox::kMaxMessages; ++i) {
    ASSERT_TRUE(rank_.inbox.post_items(0, {.part = {}, .items = {}}));
  }
  while (rank_.inbox.post_relay(0, {})) continue;
  arrive(announce({item(kMine)}));
  const wire::LayerReply said = reply();
  EXPECT_EQ(said.items, std::vector{ErrorCode::kPoolFull});
  EXPECT_EQ(said.message, "the pool's leader is behind");
  rank_.home.receive(kPeer, {.request = 4, .items = {{.sequence_id = kMine, .epoch = 1}}});
  const auto replies = transport_.take<wire::ControlReply>();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].items.at(0).code, ErrorCode::kPoolFull);
}

TEST_F(HomeTest, TheLeaderDecidesTheControlsOfProvenSequencesAlone) {
  rank_.home.receive(kPeer, {.request = 4,
                             .items = {{.sequence_id = kUnproven, .epoch = 1},
                                       {.sequence_id = kMine, .epoch = 1, .length = 65}}});
  const LeaderMail got = mail();
  ASSERT_EQ(got.relays.size(), 1U);
  ASSERT_EQ(got.relays[0].relay.items.size(), 1U);
  EXPECT_EQ(got.relays[0].relay.items[0].length, 65);
  EXPECT_TRUE(transport_.sent.empty());
  rank_.local.answer(0, {.ticket = got.relays[0].relay.ticket,
                         .items = {{.code = ErrorCode::kOk, .epoch = 1, .length = 65}},
                         .message = {}});
  const auto replies = transport_.take<wire::ControlReply>();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].request, 4U);
  ASSERT_EQ(replies[0].items.size(), 2U);
  EXPECT_EQ(replies[0].items[0].code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(replies[0].items[1].length, 65);
  EXPECT_EQ(replies[0].message, "the connection has not proven sequence 5");
}

TEST_F(HomeTest, ASequencesFloodOfControlsIsRefusedAndCounted) {
  const wire::ControlItem item{.sequence_id = kMine, .epoch = 1};
  for (std::size_t i = 0; i < Relays::kMostOfKey; ++i) {
    rank_.home.receive(kPeer, {.request = i, .items = {item}});
  }
  EXPECT_EQ(rank_.relays.refused(), 0U);
  rank_.home.receive(kPeer, {.request = 999, .items = {item, item}});
  EXPECT_EQ(rank_.relays.refused(), 1U);
  const auto replies = transport_.take<wire::ControlReply>();
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_EQ(replies[0].request, 999U);
  EXPECT_EQ(replies[0].items.at(1).code, ErrorCode::kPoolFull);
  // Each verdict makes room for one more.
  const LeaderMail got = mail();
  rank_.local.answer(0, {.ticket = got.relays.at(0).relay.ticket, .items = {{}}, .message = {}});
  rank_.home.receive(kPeer, {.request = 1'000, .items = {item}});
  EXPECT_EQ(rank_.relays.refused(), 1U);
}

TEST_F(HomeTest, ControlsOfWhichNoneIsAllowedAreAnsweredHere) {
  rank_.home.receive(kPeer, {.request = 4, .items = {{.sequence_id = kUnproven, .epoch = 1}}});
  EXPECT_TRUE(mail().empty());
  EXPECT_EQ(transport_.take<wire::ControlReply>().size(), 1U);
}

}  // namespace
}  // namespace tributary::test
