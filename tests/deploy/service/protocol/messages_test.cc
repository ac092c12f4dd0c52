// Every message of the data plane as bytes: it is decoded as it was, or refused.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "comm/wire/codec.h"
#include "deploy/service/protocol/worker_messages.h"
#include "tests/core/base/expect_error.h"

namespace tributary::wire {
namespace {

PoolShape some_shape() {
  return {{128, 512, 64, RowFormat::kF32, DType::kF64, 0.1352F, 40}, 128, 128, 7168, 61, 2048};
}

StepItem some_item(std::uint64_t id) {
  return {id, 16, 60, 7, std::int64_t{1} << 40};
}

ControlItem some_control(std::uint64_t id) {
  return {ControlOp::kTruncate, id, 3, 12'345};
}

/// One value of every message, with every field away from its default.
template <typename Visit>
void for_each_message(Visit visit) {
  const Outcome outcome{ErrorCode::kPoolFull, "page 812 of sequence 7"};
  visit(Hello{kMagic, 9, some_shape()});
  visit(Prove{{{1, {2, 3}}, {4, {5}}}});
  visit(ProveReply{{{ErrorCode::kOk}, {}}});
  visit(NotUsed{});
  visit(Welcome{3, outcome, 5, some_shape()});
  visit(Rows{1, 2, 3, 4, 5, 6, 0xdeadbeef});
  visit(RowsReply{std::numeric_limits<std::uint64_t>::max(), outcome});
  visit(Pull{1, 2, 3, 4, 5, 6, 7});
  visit(PullReply{1, outcome, 0xdeadbeef, 2, 3});
  visit(LayerRequest{1, 2, LayerMode::kForward, 3, {4, 5}, {some_item(1), some_item(2)}});
  visit(LayerReply{1, 2, {ErrorCode::kOk, ErrorCode::kInternal}, "why", {{1, 7}}});
  visit(Control{1, {some_control(1), some_control(2)}});
  visit(ControlReply{1, {{ErrorCode::kStaleEpoch, 2, 3, 4}, {}}, "why"});
  visit(Join{.rank = 3, .host = "h", .address = "tcp://h:1", .backend = "cpu", .threads = 2});
  visit(Items{1, 2, {3, 4}, {some_item(3)}});
  visit(ItemsRefused{1, {2, 3, 4}, outcome, 5});
  visit(ControlRelay{1, {some_control(2)}});
  visit(ControlRelayReply{1, {{ErrorCode::kOk, 2, 3}}, "why"});
  visit(Progress{1, 2, 3, 4, 5, 6, 7});
  visit(OrderWanted{});
  visit(Beat{1,
             2,
             3,
             23,
             24,
             {4, 5, 6, 7, 8, 9, 10, 11},
             {17, 18, 19, 20, 21, 22, 25},
             12,
             16,
             {13, 14},
             15.5});
}

TEST(MessagesTest, ComeBackAsTheyWere) {
  for_each_message([]<typename T>(const T& message) {
    const auto bytes = encode(message);
    // Every field is encoded once, so that equal bytes mean equal values.
    EXPECT_EQ(encode(decode<T>(bytes)), bytes);
  });
  const LayerRequest round = decode<LayerRequest>(
      encode(LayerRequest{1, 2, LayerMode::kForward, 3, {4, 5}, {some_item(1), some_item(2)}}));
  EXPECT_EQ(round.mode, LayerMode::kForward);
  ASSERT_EQ(round.items.size(), 2U);
  EXPECT_EQ(round.items[1].id, 2U);
  EXPECT_EQ(round.items[1].base_length, std::int64_t{1} << 40);
  EXPECT_EQ(decode<Welcome>(encode(Welcome{3, {}, 5, some_shape()})).shape, some_shape());
}

TEST(MessagesTest, EveryShorterOrLongerOneIsRefused) {
  for_each_message([]<typename T>(const T& message) {
    auto bytes = encode(message);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(code_of([&] { (void)decode<T>(std::span(bytes).first(size)); }),
                ErrorCode::kMalformedInput)
          << size << " of " << bytes.size();
    }
    bytes.push_back(std::byte{0});
    EXPECT_EQ(code_of([&] { (void)decode<T>(bytes); }), ErrorCode::kMalformedInput);
  });
}

TEST(MessagesTest, FullListsFitAHeader) {
  LayerRequest round;
  Items items;
  Control control;
  LayerReply round_reply{.items = {}, .message = std::string(kMaxText, 'x')};
  ControlReply control_reply{.items = {}, .message = std::string(kMaxText, 'x')};
  for (std::size_t i = 0; i < kMaxItems; ++i) {
    round.items.push_back(some_item(i));
    items.items.push_back(some_item(i));
    control.items.push_back(some_control(i));
    round_reply.items.push_back(ErrorCode::kInternal);
    control_reply.items.emplace_back();
  }
  Prove prove;
  prove.items.resize(Prove::Item::kMost);
  EXPECT_GE(prove.items.size(), 200U);
  EXPECT_LE(encode(prove).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(ProveReply{std::vector<ProveReply::Item>(Prove::Item::kMost)}).size(),
            kMaxHeaderBytes);
  prove.items.emplace_back();
  EXPECT_EQ(code_of([&] { (void)encode(prove); }), ErrorCode::kInvalidArgument);
  EXPECT_LE(encode(round).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(items).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(control).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(round_reply).size(), kMaxHeaderBytes);
  EXPECT_LE(encode(control_reply).size(), kMaxHeaderBytes);
  round.items.push_back(some_item(0));
  EXPECT_EQ(code_of([&] { (void)encode(round); }), ErrorCode::kInvalidArgument);
}

TEST(MessagesTest, LongTextsAreCut) {
  const RowsReply reply{1, {ErrorCode::kCorrupt, std::string(10'000, 'x')}};
  EXPECT_EQ(decode<RowsReply>(encode(reply)).outcome.message, std::string(kMaxText, 'x'));
}

TEST(MessagesTest, UnknownEnumeratorsAreRefused) {
  const auto refused = []<typename T>(const T& message, std::size_t offset) {
    auto bytes = encode(message);
    bytes.at(offset) = std::byte{200};
    return code_of([&] { (void)decode<T>(bytes); }) == ErrorCode::kMalformedInput;
  };
  EXPECT_TRUE(refused(RowsReply{}, 8));        // error code
  EXPECT_TRUE(refused(LayerRequest{}, 12));    // mode
  EXPECT_TRUE(refused(Control{1, {{}}}, 10));  // operation
  EXPECT_TRUE(refused(Hello{}, 34));           // row format
  EXPECT_TRUE(refused(Hello{}, 35));           // query type
}

TEST(MessagesTest, EveryLimitHasAName) {
  for (std::size_t i = 0; i < kLimits; ++i) {
    EXPECT_FALSE(limit_name(static_cast<Limit>(i)).empty());
  }
}

TEST(MessagesTest, EveryRefusalHasAName) {
  for (std::size_t i = 0; i < kRefusals; ++i) {
    EXPECT_FALSE(refusal_name(static_cast<Refusal>(i)).empty());
  }
}

}  // namespace
}  // namespace tributary::wire
