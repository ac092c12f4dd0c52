#include "deploy/service/worker/home/home_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "comm/wire/crc32c.h"

namespace tributary {
namespace {

wire::LayerRequest round_of(std::vector<StepItem> items) {
  wire::LayerRequest round;
  round.request = 5;
  round.items = std::move(items);
  return round;
}

StepItem round_item(std::uint64_t id, std::int32_t layer, std::int32_t tokens = 1) {
  return {.id = id, .tokens = tokens, .layer = layer, .base_length = 10};
}

class HomeQueueTest : public testing::Test {
 protected:
  std::uint64_t submit(std::vector<StepItem> items) {
    auto round = queue.open(1, round_of(std::move(items)), Time(), 4, 8);
    EXPECT_NE(round, nullptr);
    std::memset(round->input.span().data(), 1, round->input.span().size());
    return queue.submit(std::move(round));
  }

  Claim claim(SequenceId id, std::int32_t layer, std::int64_t position, std::int32_t tokens) {
    homed.push_back({.id = id, .position = position, .tokens = tokens});
    return queue.claim(homed.back(), layer);
  }

  std::deque<HomedItem> homed;
  std::vector<std::shared_ptr<HomeRequest>> replies;
  HomeQueue queue{1000, [this](const auto& round) { replies.push_back(round); }};
};

TEST_F(HomeQueueTest, OneSequenceHoldsNoMoreThanAnEighth) {
  const auto open = [&](std::vector<StepItem> items) {
    return queue.open(1, round_of(std::move(items)), Time(), 4, 8);
  };
  // 125 of the 1,000 bytes: ten tokens.
  const auto first = open({round_item(1, 0, 5), round_item(1, 1, 4), round_item(2, 0)});
  ASSERT_NE(first, nullptr);
  auto last = open({round_item(1, 2)});
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(open({round_item(2, 1), round_item(1, 3)}), nullptr);
  EXPECT_EQ(queue.refused(), 1U);
  EXPECT_EQ(queue.bytes(), 11U * 12U);
  last.reset();
  EXPECT_NE(open({round_item(2, 1), round_item(1, 3)}), nullptr);
  EXPECT_NE(open({round_item(3, 0, 16)}), nullptr);  // one item is always allowed
}

TEST_F(HomeQueueTest, AnswersWhenAllItemsHaveEnded) {
  const std::uint64_t ticket = submit({round_item(1, 0, 2), round_item(2, 0), round_item(3, 1)});
  EXPECT_EQ(queue.bytes(), 4U * 12U);
  EXPECT_EQ(claim(1, 1, 10, 2).request, nullptr);  // another layer
  EXPECT_EQ(claim(1, 0, 11, 2).request, nullptr);  // another step
  EXPECT_EQ(claim(1, 0, 10, 1).request, nullptr);
  {
    const auto first = claim(1, 0, 10, 2);
    ASSERT_NE(first.request, nullptr);
    EXPECT_EQ(first.homed, &homed.back());
    EXPECT_EQ(first.input().size(), 8U);
    std::memset(first.output().data(), 11, 16);
    queue.finish(first, {});
    queue.refuse({.ticket = ticket, .items = {0, 1, 9}, .outcome = {ErrorCode::kNotFound, "gone"}});
    EXPECT_TRUE(replies.empty());
    const auto last = claim(3, 1, 10, 1);
    std::memset(last.output().data(), 33, 8);
    queue.finish(last, {});
  }
  ASSERT_EQ(replies.size(), 1U);
  const auto pieces = finish_reply(*replies[0]);
  const wire::LayerReply& reply = replies[0]->reply;
  ASSERT_EQ(pieces.size(), 2U);
  std::vector<std::byte> payload;
  for (const auto piece : pieces) payload.insert(payload.end(), piece.begin(), piece.end());
  EXPECT_EQ(reply.request, 5U);
  EXPECT_EQ(reply.items, (std::vector{ErrorCode::kOk, ErrorCode::kNotFound, ErrorCode::kOk}));
  EXPECT_EQ(reply.message, "gone");
  ASSERT_EQ(payload.size(), 24U);  // the refused round_item leaves no gap
  EXPECT_EQ(payload[15], std::byte{11});
  EXPECT_EQ(payload[16], std::byte{33});
  EXPECT_EQ(reply.crc32c, wire::crc32c(payload));
  queue.refuse({.ticket = ticket, .items = {0}, .outcome = {}});  // it has ended
  EXPECT_EQ(claim(1, 0, 10, 2).request, nullptr);
  EXPECT_GT(queue.bytes(), 0U);
  replies.clear();
  EXPECT_EQ(queue.bytes(), 0U);
}

TEST_F(HomeQueueTest, TheFirstOfTwoEqualRequestsIsRun) {
  const std::uint64_t first = submit({round_item(1, 0)});
  const std::uint64_t second = submit({round_item(1, 0)});
  EXPECT_EQ(claim(1, 0, 10, 1).request->ticket, first);
  queue.refuse({.ticket = first, .items = {0}, .outcome = {ErrorCode::kDeadlineExceeded, ""}});
  EXPECT_EQ(claim(1, 0, 10, 1).request->ticket, second);
}

TEST_F(HomeQueueTest, AnItemThatEndedBeforeIsNotClaimed) {
  auto forged = queue.open(1, round_of({round_item(1, 0), round_item(2, 0)}), Time(), 4, 8);
  EXPECT_TRUE(forged->end(0, ErrorCode::kPermissionDenied, "forged"));
  EXPECT_FALSE(forged->end(0, ErrorCode::kInternal, "again"));
  const std::uint64_t ticket = queue.submit(std::move(forged));
  EXPECT_EQ(claim(1, 0, 10, 1).request, nullptr);
  const std::uint64_t own = submit({round_item(1, 0)});
  EXPECT_EQ(claim(1, 0, 10, 1).request->ticket, own);
  queue.refuse({.ticket = ticket, .items = {0, 1}, .outcome = {ErrorCode::kNotFound, "gone"}});
  ASSERT_EQ(replies.size(), 1U);
  EXPECT_TRUE(finish_reply(*replies[0]).empty());
  const wire::LayerReply& reply = replies[0]->reply;
  EXPECT_EQ(reply.items, (std::vector{ErrorCode::kPermissionDenied, ErrorCode::kNotFound}));
  EXPECT_EQ(reply.message, "forged");
}

TEST_F(HomeQueueTest, HoldsNoMoreThanItMay) {
  const auto most = queue.open(1, round_of({round_item(1, 0, 80)}), Time(), 4, 8);
  ASSERT_NE(most, nullptr);
  EXPECT_EQ(queue.open(1, round_of({round_item(2, 0, 4)}), Time(), 4, 8), nullptr);
  EXPECT_NE(queue.open(1, round_of({round_item(2, 0, 3)}), Time(), 4, 8), nullptr);
  EXPECT_EQ(queue.open(1, round_of({round_item(2, 0, 85)}), Time(), 4, 8), nullptr);
  EXPECT_EQ(queue.bytes(), 960U);
}

}  // namespace
}  // namespace tributary
