#include "comm/wire/messages.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/core/expect_error.h"

namespace tributary::wire {
namespace {

constexpr Token kToken{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255};

Shape some_shape() {
  return {128, 512, 64, 128, 7168, 61, 2048, 1, 0, 0.1352F};
}

RoundItem some_item(std::uint64_t id) {
  return {id, 7, kToken, std::int64_t{1} << 40, 16, 60};
}

ControlItem some_control(std::uint64_t id) {
  return {ControlOp::kTruncate, id, 3, kToken, 12'345};
}

/// One value of every message, with every field away from its default.
template <typename Visit>
void for_each_message(Visit visit) {
  const Outcome outcome{ErrorCode::kPoolFull, "page 812 of sequence 7"};
  visit(Hello{kMagic, 9, some_shape(), 99, kToken}, decode_hello);
  visit(Welcome{3, outcome, 5, some_shape()}, decode_welcome);
  visit(Rows{1, 2, 3, kToken, 4, 5, 6, 0xdeadbeef}, decode_rows);
  visit(RowsReply{std::numeric_limits<std::uint64_t>::max(), outcome}, decode_rows_reply);
  visit(Round{1, 2, RoundMode::kForward, 3, 4, 5, {some_item(1), some_item(2)}}, decode_round);
  visit(RoundReply{1, 2, {ErrorCode::kOk, ErrorCode::kInternal}, "why"}, decode_round_reply);
  visit(Control{1, {some_control(1), some_control(2)}}, decode_control);
  visit(ControlReply{1, {{ErrorCode::kStaleEpoch, 2, 3}, {}}, "why"}, decode_control_reply);
  visit(Join{3, kToken}, decode_join);
  visit(Items{1, 2, {some_item(3)}}, decode_items);
  visit(ItemsRefused{1, {2, 3, 4}, outcome}, decode_items_refused);
  visit(Forward{1, {some_control(2)}}, decode_forward);
  visit(ForwardReply{1, {{ErrorCode::kOk, 2, 3}}, "why"}, decode_forward_reply);
  visit(Progress{1, 2, 3, 4, 5, 6, 7}, decode_progress);
  visit(Beat{1, 2, 3, {4, 5, 6, 7, 8, 9, 10, 11}, 12, {13, 14}, 15.5}, decode_beat);
}

TEST(MessagesTest, ComeBackAsTheyWere) {
  for_each_message([](const auto& message, auto decode) {
    const auto bytes = encode(message);
    // Every field is encoded once, so that equal bytes mean equal values.
    EXPECT_EQ(encode(decode(bytes)), bytes);
  });
  const Round round =
      decode_round(encode(Round{1, 2, RoundMode::kForward, 3, 4, 5, {some_item(1), some_item(2)}}));
  EXPECT_EQ(round.mode, RoundMode::kForward);
  ASSERT_EQ(round.items.size(), 2U);
  EXPECT_EQ(round.items[1].sequence_id, 2U);
  EXPECT_EQ(round.items[1].token, kToken);
  EXPECT_EQ(round.items[1].base_length, std::int64_t{1} << 40);
  EXPECT_EQ(decode_welcome(encode(Welcome{3, {}, 5, some_shape()})).shape, some_shape());
}

TEST(MessagesTest, EveryShorterOrLongerOneIsRefused) {
  for_each_message([](const auto& message, auto decode) {
    auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(code_of([&] { (void)decode(std::span(bytes).first(size)); }),
                ErrorCode::kMalformedInput)
          << size << " of " << bytes.size();
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(code_of([&] { (void)decode(bytes); }), ErrorCode::kMalformedInput);
  });
}

TEST(MessagesTest, FullListsFitAHeader) {
  Round round;
  Control control;
  RoundReply round_reply{.items = {}, .message = std::string(kMaxText, 'x')};
  ControlReply control_reply{.items = {}, .message = std::string(kMaxText, 'x')};
  for (std::size_t i = 0; i < kMaxItems; ++i) {
    round.items.push_back(some_item(i));
    control.items.push_back(some_control(i));
    round_reply.items.push_back(ErrorCode::kInternal);
    control_reply.items.emplace_back();
  }
  EXPECT_LE(encode(round).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(control).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(round_reply).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(control_reply).size(), kMaxHeaderBytes);
  round.items.push_back(some_item(0));
  EXPECT_EQ(code_of([&] { (void)encode(round); }), ErrorCode::kInvalidArgument);
}

TEST(MessagesTest, LongTextsAreCut) {
  const RowsReply reply{1, {ErrorCode::kCorrupt, std::string(10'000, 'x')}};
  EXPECT_EQ(decode_rows_reply(encode(reply)).outcome.message, std::string(kMaxText, 'x'));
}

TEST(MessagesTest, UnknownEnumeratorsAreRefused) {
  const auto refused = [](auto bytes, std::size_t offset, auto decode) {
    bytes.at(offset) = std::byte{200};
    return code_of([&] { (void)decode(bytes); }) == ErrorCode::kMalformedInput;
  };
  EXPECT_TRUE(refused(encode(RowsReply{}), 8, decode_rows_reply));     // error code
  EXPECT_TRUE(refused(encode(Round{}), 12, decode_round));             // mode
  EXPECT_TRUE(refused(encode(Control{1, {{}}}), 10, decode_control));  // operation
}

TEST(MessagesTest, EveryRefusalHasAName) {
  for (std::size_t i = 0; i < kRefusals; ++i) {
    EXPECT_FALSE(refusal_name(static_cast<Refusal>(i)).empty());
  }
}

}  // namespace
}  // namespace tributary::wire
