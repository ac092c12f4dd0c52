#include "deploy/service/worker/home/rows_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"
#include "core/interface/manual_clock.h"
#include "kernels/reference/reference_backend.h"

namespace tributary {
namespace {

/// Worker 0 of two. Of the sequence it has leaf 0 and leaf 2, whose second page is not full.
class RowsSenderTest : public testing::Test {
 protected:
  static constexpr SequenceId kSequence = 7;
  static constexpr PeerId kPeer = 3;
  static constexpr int kLayers = 2;
  static constexpr int kWidth = 24;
  static constexpr std::size_t kRowBytes = kWidth * sizeof(float);
  static constexpr std::int64_t kPrompt = 300;
  static constexpr int kLeaf = 128;

  RowsSenderTest() {
    table_.apply(AdmitOp{sequence_});
    arrived_.open(sequence_);
    for (int layer = 0; layer < kLayers; ++layer) {
      write(layer, 0, 128);
      write(layer, 256, kPrompt);
    }
  }

  static float value(int layer, std::int64_t position, int i) {
    return static_cast<float>(layer * 100'000 + position * 100 + i);
  }
  /// Writes rows, as their owner, and counts them as arrived.
  void write(int layer, std::int64_t begin, std::int64_t end) {
    const auto transfer = arrived_.begin(kSequence, 1, layer, begin, end - begin);
    std::int64_t position = begin;
    for (const PageRun& run : transfer.runs) {
      std::vector<float> rows;
      for (std::int32_t r = 0; r < run.count; ++r, ++position) {
        for (int i = 0; i < kWidth; ++i) rows.push_back(value(layer, position, i));
      }
      backend_->store_rows(*cache_, layer, run.page, run.slot, std::as_bytes(std::span(rows)));
    }
    static_cast<void>(arrived_.end(transfer.ticket, true));
  }

  void ask(std::int64_t begin, std::int64_t count, int layer = 0, std::uint32_t epoch = 1,
           SequenceId id = kSequence, bool allowed = true, PeerId peer = kPeer) {
    sender_.receive(peer,
                    {.request = ++last_,
                     .sequence_id = id,
                     .epoch = epoch,
                     .deadline_us = 1'000'000,
                     .layer = layer,
                     .begin = begin,
                     .count = count},
                    allowed);
  }
  void serve() {
    while (sender_.serve()) continue;
  }
  /// The one answer to the last question.
  wire::PullReply answer() {
    serve();
    EXPECT_EQ(answers_.size(), 1U);
    if (answers_.empty()) return {};
    EXPECT_EQ(answers_.back().reply.request, last_);
    return std::exchange(answers_, {}).back().reply;
  }

  struct Answer {
    PeerId peer = 0;
    wire::PullReply reply;
    std::vector<std::byte> rows;
    std::function<void()> sent;
  };

  const Sequence sequence_{.id = kSequence,
                           .epoch = 1,
                           .prompt_tokens = kPrompt,
                           .limit_tokens = kPrompt + 84,
                           .length = kPrompt,
                           .leaves = {{0, {5, 1}}, {1, {0, 1}}, {0, {2}}}};
  ManualClock clock_;
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::unique_ptr<Cache> cache_ = backend_->make_cache({.layers = kLayers,
                                                        .pages = 8,
                                                        .kv_lora_rank = 16,
                                                        .qk_rope_head_dim = 8,
                                                        .row_format = RowFormat::kF32});
  SequenceTable table_{kLeaf};
  IngestTable arrived_{0, kLayers, kLeaf};
  std::vector<Answer> answers_;
  int wakes_ = 0;
  int orders_wanted_ = 0;
  std::uint64_t last_ = 0;
  RowsSender sender_{
      0,
      table_,
      arrived_,
      *backend_,
      *cache_,
      {.reply =
           [this](PeerId peer, const wire::PullReply& reply, std::span<const std::byte> rows,
                  std::function<void()> sent) {
             answers_.push_back({peer, reply, {rows.begin(), rows.end()}, std::move(sent)});
           },
       .wake = [this] { ++wakes_; },
       .want_order = [this] { ++orders_wanted_; }},
      clock_};
};

TEST_F(RowsSenderTest, RowsComeAsTheyAreStored) {
  ask(30, 90, 1);
  EXPECT_EQ(wakes_, 1);
  EXPECT_TRUE(answers_.empty()) << "the worker's thread reads them";
  serve();
  ASSERT_EQ(answers_.size(), 1U);
  const Answer& got = answers_.front();
  EXPECT_TRUE(got.reply.outcome.ok()) << got.reply.outcome.message;
  EXPECT_EQ(got.reply.count, 90);
  EXPECT_EQ(got.reply.owner, -1);
  EXPECT_EQ(got.reply.crc32c, wire::crc32c(got.rows));
  ASSERT_EQ(got.rows.size(), 90 * kRowBytes);
  for (std::int64_t r = 0; r < 90; ++r) {
    for (int i = 0; i < kWidth; ++i) {
      float stored = 0;
      std::memcpy(&stored, &got.rows[static_cast<std::size_t>(r * kWidth + i) * 4], 4);
      ASSERT_EQ(stored, value(1, 30 + r, i));
    }
  }
  wire::Beat beat;
  sender_.add_counts(beat);
  EXPECT_EQ(beat.pulled_rows, 90U);
  EXPECT_EQ(beat.pulled_bytes, 90 * kRowBytes);
}

TEST_F(RowsSenderTest, WhatLiesElsewhereIsNamedByItsOwner) {
  ask(100, 200);
  wire::PullReply reply = answer();
  EXPECT_EQ(reply.count, 28);
  EXPECT_EQ(reply.owner, 1);
  ask(128, 10);
  reply = answer();
  EXPECT_TRUE(reply.outcome.ok());
  EXPECT_EQ(reply.count, 0);
  EXPECT_EQ(reply.owner, 1);
}

TEST_F(RowsSenderTest, AMoveBetweenTwoPiecesLeadsToTheNewOwner) {
  const auto piece = static_cast<std::int64_t>(RowsSender::kPieceBytes / kRowBytes);
  ASSERT_GT(piece, 128) << "a leaf is a piece";
  table_.apply(ExtendOp{kSequence, 2, 0, {3}});
  table_.apply(CommitOp{kSequence, 84});  // the third leaf is full: 0, 1, 0
  table_.apply(MoveOp{kSequence, 1, 0, {6, 7}});
  ask(0, 384);
  EXPECT_TRUE(sender_.serve());
  EXPECT_TRUE(sender_.serve());
  table_.apply(MoveOp{kSequence, 2, 1, {3, 4}});
  sender_.order_ended();
  const wire::PullReply reply = answer();
  EXPECT_EQ(reply.count, 256);
  EXPECT_EQ(reply.owner, 1);
}

TEST_F(RowsSenderTest, AnEndBetweenTwoPiecesLeavesNothingReadable) {
  table_.apply(MoveOp{kSequence, 1, 0, {6, 7}});
  ask(0, kPrompt);
  EXPECT_TRUE(sender_.serve());
  table_.apply(FreeOp{kSequence});
  sender_.order_ended();
  serve();
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].reply.outcome.code, ErrorCode::kNotFound);
  EXPECT_EQ(answers_[0].reply.count, 0);
  EXPECT_TRUE(answers_[0].rows.empty());
}

TEST_F(RowsSenderTest, WhatWasCommittedIsThereAfterTheOrdersThatAClientMayBeAheadOf) {
  ask(290, 20);
  serve();
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(orders_wanted_, 1);
  sender_.order_ended();  // one that was on its way
  serve();
  EXPECT_TRUE(answers_.empty());
  EXPECT_EQ(orders_wanted_, 2);
  table_.apply(ExtendOp{kSequence, 2, 0, {3}});
  table_.apply(CommitOp{kSequence, 30});
  sender_.order_ended();
  EXPECT_EQ(answer().count, 20);
  EXPECT_EQ(orders_wanted_, 2);
}

TEST_F(RowsSenderTest, WhatIsNotThereByThenIsRefused) {
  ask(290, 20);
  ask(310, 5);
  serve();
  EXPECT_EQ(orders_wanted_, 1) << "for both";
  sender_.order_ended();
  serve();
  sender_.order_ended();
  serve();
  ASSERT_EQ(answers_.size(), 2U);
  EXPECT_EQ(answers_[0].reply.outcome.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(answers_[0].reply.outcome.message, "rows 290 to 310: sequence 7 has 300");
  EXPECT_EQ(answers_[1].reply.outcome.code, ErrorCode::kInvalidArgument);
}

TEST_F(RowsSenderTest, OthersDoNotWaitForOneThatIsAhead) {
  ask(290, 20);
  ask(0, 10);
  EXPECT_EQ(answer().count, 10);
}

TEST_F(RowsSenderTest, EpochsAreThoseOfTheTableSoonerOrLater) {
  ask(0, 10, 0, 2);
  serve();
  EXPECT_TRUE(answers_.empty()) << "the truncation is on its way";
  table_.apply(TruncateOp{kSequence, 2, 200});
  sender_.order_ended();
  EXPECT_EQ(answer().count, 10);
  ask(0, 10, 0, 1);
  EXPECT_EQ(answer().outcome.code, ErrorCode::kStaleEpoch);
  ask(0, 10, 0, 3);
  for (int i = 0; i < 2; ++i) {
    serve();
    sender_.order_ended();
  }
  EXPECT_EQ(answer().outcome.code, ErrorCode::kStaleEpoch);
}

TEST_F(RowsSenderTest, RowsThatHaveNotArrivedAreNamed) {
  table_.apply(FreeOp{kSequence});
  arrived_.close(kSequence, 1);
  table_.apply(AdmitOp{sequence_});
  arrived_.open(sequence_);
  write(0, 10, 20);
  ask(10, 10);
  EXPECT_EQ(answer().count, 10);
  ask(10, 11);
  const wire::PullReply missing = answer();
  EXPECT_EQ(missing.outcome.code, ErrorCode::kFailedPrecondition);
  EXPECT_EQ(missing.outcome.message, "row 20 of layer 0 of sequence 7 has not arrived");
  ask(10, 10, 1);
  EXPECT_EQ(answer().outcome.code, ErrorCode::kFailedPrecondition);
}

TEST_F(RowsSenderTest, WrongPullsAreRefusedAtOnce) {
  const auto refused = [&](const char* text) {
    EXPECT_EQ(answers_.size(), 1U);
    EXPECT_THAT(answers_.back().reply.outcome.message, testing::HasSubstr(text));
    return std::exchange(answers_, {}).back().reply.outcome.code;
  };
  const auto most = static_cast<std::int64_t>(RowsSender::kMaxPullBytes / kRowBytes);
  ask(0, 10, 0, 1, kSequence, false);
  EXPECT_EQ(refused("has not proven sequence 7"), ErrorCode::kPermissionDenied);
  ask(0, 10, 2);
  EXPECT_EQ(refused("layer 2, expected 0 .. 1"), ErrorCode::kInvalidArgument);
  ask(0, 10, -1);
  EXPECT_EQ(refused("layer -1"), ErrorCode::kInvalidArgument);
  ask(0, 0);
  EXPECT_EQ(refused("0 rows of sequence 7 from 0 on"), ErrorCode::kInvalidArgument);
  ask(0, most + 1);
  EXPECT_EQ(refused("expected 1 .. "), ErrorCode::kInvalidArgument);
  ask(-1, 10);
  EXPECT_EQ(refused("from -1 on"), ErrorCode::kInvalidArgument);
  ask(INT64_MAX, 1);
  EXPECT_EQ(refused("on, expected"), ErrorCode::kInvalidArgument);
  ask(0, 10, 0, 1, 8);
  EXPECT_EQ(answer().outcome.code, ErrorCode::kNotFound);
  EXPECT_EQ(wakes_, 1) << "for the last alone";
}

TEST_F(RowsSenderTest, WhatIsNotReadInTimeIsNot) {
  ask(0, 10);
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(answer().outcome.code, ErrorCode::kDeadlineExceeded);
}

/// The bound counts what is asked for until it has left.
TEST_F(RowsSenderTest, ASequenceHasItsShareOfTheBound) {
  const auto most = static_cast<std::int64_t>(RowsSender::kMaxPullBytes / kRowBytes);
  ask(0, most);
  ask(0, 10);
  ASSERT_EQ(answers_.size(), 1U);
  EXPECT_EQ(answers_[0].reply.outcome.code, ErrorCode::kPoolFull);
  answers_.clear();
  for (SequenceId other = 8; other < 15; ++other) ask(0, most, 0, 1, other);
  EXPECT_TRUE(answers_.empty());
  ask(0, 10, 0, 1, 20);
  ASSERT_EQ(answers_.size(), 1U) << "all of it is taken";
  EXPECT_EQ(answers_[0].reply.outcome.code, ErrorCode::kPoolFull);
  answers_.clear();
  serve();  // the others are not here
  EXPECT_EQ(answers_.size(), 7U);
  answers_.clear();
  for (int i = 0; i < 2; ++i) {
    sender_.order_ended();
    serve();
  }
  ASSERT_EQ(answers_.size(), 1U) << "the first asked for more than there is";
  answers_.clear();
  ask(0, 128);
  serve();
  ASSERT_EQ(answers_.size(), 1U);
  ask(0, most);
  EXPECT_EQ(answers_.size(), 2U) << "the first has not left";
  answers_[0].sent();
  ask(0, most);
  EXPECT_EQ(answers_.size(), 2U);
}

TEST_F(RowsSenderTest, ConnectionsTakeTurnsAndOneThatDoesNotReadKeepsNobodyWaiting) {
  const auto bound = static_cast<std::int64_t>(RowsSender::kMaxUnsentBytes / kRowBytes);
  std::int64_t asked = 0;
  for (; asked * 128 < bound + 128; ++asked) ask(0, 128);
  constexpr PeerId kOther = kPeer + 1;
  for (int i = 0; i < 2; ++i) ask(0, 10, 0, 1, kSequence, true, kOther);
  serve();
  std::vector<PeerId> order;
  for (const Answer& answer : answers_) order.push_back(answer.peer);
  ASSERT_GE(order.size(), 4U);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 4),
            (std::vector<PeerId>{kPeer, kOther, kPeer, kOther}));
  const auto first = std::ranges::count(order, kPeer);
  EXPECT_EQ(std::ranges::count(order, kOther), 2);
  EXPECT_LT(first, asked) << "the rest waits until rows have left";
  EXPECT_GE(first * 128, bound);
  EXPECT_LT((first - 1) * 128, bound);
  ask(0, 10, 0, 1, kSequence, true, kOther);
  serve();
  EXPECT_EQ(answers_.back().peer, kOther);
  const int woken = wakes_;
  answers_.front().sent();
  EXPECT_EQ(wakes_, woken + 1);
  serve();
  EXPECT_EQ(answers_.back().peer, kPeer);
}

}  // namespace
}  // namespace tributary
