#include "deploy/service/worker/leader/step_book.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace tributary {
namespace {

constexpr int kLayers = 3;
constexpr int kLeafTokens = 64;

/// Leaves on workers 0, 1, 0, ...
Sequence sequence_of(std::int64_t prompt, std::int64_t length, std::int64_t limit) {
  Sequence s;
  s.id = 7;
  s.epoch = 2;
  s.prompt_tokens = prompt;
  s.limit_tokens = limit;
  s.length = length;
  for (std::int64_t begin = 0; begin < limit; begin += kLeafTokens) {
    s.leaves.push_back({static_cast<std::int32_t>(begin / kLeafTokens % 2), {}});
  }
  return s;
}

StepItem item(std::int64_t base, std::int32_t tokens, std::int32_t layer) {
  return {.id = 7, .tokens = tokens, .layer = layer, .epoch = 2, .base_length = base};
}

wire::ControlItem control(wire::ControlOp op, std::int64_t length) {
  wire::ControlItem item;
  item.op = op;
  item.sequence_id = 7;
  item.epoch = 2;
  item.length = length;
  return item;
}

wire::Progress progress(std::int32_t rank, std::int64_t done, std::int64_t total,
                        std::int32_t missing_layer = -1, std::int64_t missing_position = -1) {
  return {.rank = rank,
          .sequence_id = 7,
          .epoch = 2,
          .rows_done = done,
          .rows_total = total,
          .missing_layer = missing_layer,
          .missing_position = missing_position};
}

class StepBookTest : public testing::Test {
 protected:
  void expect(const StepBook::Decision& decision, ErrorCode code, const std::string& message) {
    EXPECT_EQ(decision.outcome.code, code);
    EXPECT_EQ(decision.outcome.message, message);
  }
  /// A ready sequence without prompt and `length` rows.
  void ready(std::int64_t length) {
    sequence = sequence_of(0, length, 100);
    book.add(sequence, {"key", "secret"}, {});
  }

  StepBook book{kLayers, kLeafTokens};
  Sequence sequence;
};

TEST_F(StepBookTest, ReadyWhenEveryOwnerHasAllRows) {
  sequence = sequence_of(200, 200, 300);
  book.add(sequence, {"key", "secret"}, {});
  EXPECT_EQ(book.idempotency(7).key, "key");
  EXPECT_EQ(book.idempotency(7).secret, "secret");
  EXPECT_EQ(book.state(7), SequenceState::kFilling);
  book.add(sequence, {"key", "secret"}, {});  // once
  EXPECT_EQ(book.filling(), 1U);
  expect(book.decide(item(200, 1, 0), &sequence), ErrorCode::kFailedPrecondition,
         "not ready: worker 0 has 0 of 384 rows, first missing layer 0 position 0, worker 1 has 0 "
         "of 216 rows, first missing layer 0 position 64");
  book.progress(progress(0, 384, 384));
  book.progress(progress(1, 100, 216, 1, 80));
  book.progress(progress(2, 100, 216, 1, 80));  // owns nothing
  wire::Progress stale = progress(1, 216, 216);
  stale.epoch = 1;
  book.progress(stale);
  EXPECT_TRUE(book.decide(item(200, 1, 0), &sequence).filling);
  EXPECT_EQ(book.missing(7), "worker 1 has 100 of 216 rows, first missing layer 1 position 80");
  expect(book.decide(control(wire::ControlOp::kTruncate, 0), &sequence),
         ErrorCode::kFailedPrecondition,
         "truncate to 0: not ready: worker 1 has 100 of 216 rows, first missing layer 1 position "
         "80");
  book.progress(progress(1, 216, 216));
  EXPECT_EQ(book.state(7), SequenceState::kReady);
  EXPECT_EQ(book.filling(), 0U);
  EXPECT_EQ(book.missing(7), "");
  EXPECT_TRUE(book.decide(item(200, 1, 0), &sequence).open);
}

/// Leaf 1 was lost with worker 1, whose leaf 3 has moved to worker 2 before, and comes to worker 0.
TEST_F(StepBookTest, AfterALossEveryOwnerSaysAgainHowItsRowsStand) {
  sequence = sequence_of(200, 200, 300);
  book.add(sequence, {"key", "secret"}, {});
  for (const std::int32_t rank : {0, 1}) book.progress(progress(rank, 1, 1));
  ASSERT_EQ(book.filling(), 0U);
  sequence.leaves[3].owner = 2;
  const std::vector<std::int32_t> lost = {1};
  sequence.epoch = 3;
  sequence.leaves[1].owner = kNoWorker;
  book.lose_worker(1);
  book.lost(sequence, lost);
  EXPECT_EQ(book.filling(), 1U);
  EXPECT_NE(book.missing(7).find("rows from 64 on wait for room"), std::string::npos);
  sequence.leaves[1].owner = 0;
  book.lost(sequence, lost);
  const auto tell = [&](std::uint32_t epoch, std::int64_t total, std::int32_t missing = -1) {
    wire::Progress word = progress(0, missing < 0 ? total : 0, total, missing);
    word.epoch = epoch;
    return book.progress(word);
  };
  EXPECT_FALSE(tell(2, 384)) << "before the loss";
  EXPECT_FALSE(tell(3, 384)) << "before it knew of the leaf";
  EXPECT_FALSE(tell(3, 576, 0));
  EXPECT_TRUE(tell(3, 576));
  EXPECT_EQ(book.filling(), 0U);
  EXPECT_EQ(book.extents(7).back().end, 200) << "of the prompt, as a registration says it";
}

/// All leaves of worker 1 have moved before it was lost: this loss is none of the sequence.
TEST_F(StepBookTest, WhoTakesThePlaceOfALostWorkerHasNoneOfItsRows) {
  sequence = sequence_of(200, 200, 300);
  book.add(sequence, {"key", "secret"}, {});
  for (const std::int32_t rank : {0, 1}) book.progress(progress(rank, 1, 1));
  for (const std::size_t leaf : {1U, 3U}) sequence.leaves[leaf].owner = 2;
  book.lose_worker(1);
  // Another one is worker 1 now, and worker 2 is lost with leaf 1, which goes there.
  sequence.epoch = 3;
  sequence.leaves[1].owner = 1;
  sequence.leaves[3].owner = 0;
  book.lose_worker(2);
  book.lost(sequence, std::vector<std::int32_t>{1});
  EXPECT_NE(book.missing(7).find("worker 1 has 0 of 192 rows"), std::string::npos)
      << book.missing(7);
  for (const std::int32_t rank : {0, 1}) {
    const std::int64_t rows = rank == 0 ? 384 : 192;
    wire::Progress word = progress(rank, rows, rows);
    word.epoch = 3;
    book.progress(word);
  }
  EXPECT_EQ(book.missing(7), "");
}

TEST_F(StepBookTest, RefusesWhatDoesNotFitTheSequence) {
  ready(10);
  EXPECT_EQ(book.decide(item(10, 1, 0), nullptr).outcome.code, ErrorCode::kNotFound);
  StepItem stale = item(10, 1, 0);
  stale.epoch = 1;
  expect(book.decide(stale, &sequence), ErrorCode::kStaleEpoch,
         "sequence 7: epoch 1 is over, now is 2");
  expect(book.decide(item(9, 1, 0), &sequence), ErrorCode::kFailedPrecondition,
         "base length 9, the sequence has 10");
  expect(book.decide(item(99, 2, 0), &sequence), ErrorCode::kInvalidArgument,
         "99 + 2 tokens exceed the limit of 100 that was admitted");
  EXPECT_EQ(
      book.decide(item(std::numeric_limits<std::int64_t>::max(), 16, 0), &sequence).outcome.code,
      ErrorCode::kInvalidArgument);
  for (const std::int32_t tokens : {-1, 0, 17}) {
    EXPECT_EQ(book.decide(item(10, tokens, 0), &sequence).outcome.code,
              ErrorCode::kInvalidArgument);
  }
  for (const std::int32_t layer : {-1, 3}) {
    EXPECT_EQ(book.decide(item(10, 1, layer), &sequence).outcome.code, ErrorCode::kInvalidArgument);
  }
}

TEST_F(StepBookTest, LayersInAnyOrderThenTheNextStepCommits) {
  ready(10);
  EXPECT_TRUE(book.decide(item(10, 2, 2), &sequence).open);
  book.opened(item(10, 2, 0), {});
  EXPECT_EQ(book.open_steps(), 1U);
  EXPECT_EQ(book.state(7), SequenceState::kStepping);
  book.set_waiting(7, true);
  EXPECT_EQ(book.decide(item(10, 2, 1), &sequence).outcome.code, ErrorCode::kFailedPrecondition);
  expect(book.decide(control(wire::ControlOp::kCommit, 12), &sequence),
         ErrorCode::kFailedPrecondition, "a layer of the open step from 10 to 12 has not ended");
  EXPECT_EQ(book.decide(control(wire::ControlOp::kCommit, 10), &sequence).commit, 0);  // abort
  book.set_waiting(7, false);
  book.ran(item(10, 2, 2));
  book.ran(item(10, 2, 2));  // a retry
  expect(book.decide(item(12, 1, 0), &sequence), ErrorCode::kFailedPrecondition,
         "the open step at 10 has not run layers 0, 1");
  expect(book.decide(item(10, 1, 0), &sequence), ErrorCode::kFailedPrecondition,
         "1 tokens, the open step at 10 has 2; commit or abort it first");
  const auto same = book.decide(item(10, 2, 0), &sequence);
  EXPECT_TRUE(same.outcome.ok());
  EXPECT_FALSE(same.open);
  book.ran(item(10, 2, 0));
  expect(book.decide(control(wire::ControlOp::kCommit, 11), &sequence),
         ErrorCode::kFailedPrecondition, "the open step at 10 has not run layer 1");
  book.ran(item(10, 2, 1));
  for (const std::int64_t length : {9, 13}) {
    expect(
        book.decide(control(wire::ControlOp::kCommit, length), &sequence),
        ErrorCode::kFailedPrecondition,
        fmt::format("length {} does not lie in the open step, which goes from 10 to 12", length));
  }
  EXPECT_EQ(book.decide(control(wire::ControlOp::kCommit, 11), &sequence).commit, 1);
  const auto next = book.decide(item(12, 3, 1), &sequence);
  EXPECT_TRUE(next.outcome.ok()) << next.outcome.message;
  EXPECT_TRUE(next.open);
  EXPECT_EQ(next.commit, 2);
  const StepBook::Closed first = book.closed(7, true, Time(std::chrono::seconds(9)));
  EXPECT_TRUE(first.first_commit);
  EXPECT_EQ(first.before, Time{}) << "its admission";
  EXPECT_EQ(book.open_steps(), 0U);
}

TEST_F(StepBookTest, ControlsWithoutAnOpenStep) {
  ready(10);
  const auto repeated = book.decide(control(wire::ControlOp::kCommit, 10), &sequence);
  EXPECT_TRUE(repeated.outcome.ok());
  EXPECT_FALSE(repeated.commit);
  expect(book.decide(control(wire::ControlOp::kCommit, 11), &sequence),
         ErrorCode::kFailedPrecondition,
         "commit to length 11: no step is open, the sequence has 10");
  EXPECT_TRUE(book.decide(control(wire::ControlOp::kTruncate, 3), &sequence).outcome.ok());
  EXPECT_EQ(book.decide(control(wire::ControlOp::kTruncate, 11), &sequence).outcome.code,
            ErrorCode::kInvalidArgument);
  wire::ControlItem renew = control(wire::ControlOp::kRenew, 0);
  renew.epoch = 1;
  EXPECT_TRUE(book.decide(renew, &sequence).outcome.ok());
  EXPECT_EQ(book.decide(renew, nullptr).outcome.code, ErrorCode::kNotFound);
  book.opened(item(10, 1, 0), {});
  expect(book.decide(control(wire::ControlOp::kTruncate, 3), &sequence),
         ErrorCode::kFailedPrecondition,
         "truncate to 3: a step is open at 10; commit or abort it first");
  book.remove(7);
  EXPECT_EQ(book.open_steps(), 0U);
  EXPECT_EQ(book.size(), 0U);
}

}  // namespace
}  // namespace tributary
