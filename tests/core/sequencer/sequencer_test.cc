#include "core/sequencer/sequencer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/base/error.h"
#include "core/cost/built_in_costs.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/cache/same_sequence.h"
#include "tests/core/sequencer/sequencer_model.h"

namespace tributary {
namespace {

SequencerConfig config(int workers, std::int32_t pages, int leaf_tokens = 64) {
  return {.placement = {.workers = workers, .model = default_cost_model(leaf_tokens)},
          .pages_per_worker = pages,
          .incarnation = 1};
}

AdmitRequest request(std::int64_t prompt, std::int64_t more,
                     SpreadPolicy spread = SpreadPolicy::kAuto) {
  return {.prompt_tokens = prompt, .max_new_tokens = more, .spread = spread};
}

TEST(Sequencer, RefusesBadConfigurations) {
  EXPECT_EQ(code_of([] { const Sequencer s(config(0, 1)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { const Sequencer s(config(1, 0)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { const Sequencer s(config(1, 1, 63)); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] { const Sequencer s(config(1, 1, 192)); }), ErrorCode::kInvalidArgument);
}

TEST(Sequencer, AdmissionReservesAll) {
  SequencerModel model(config(1, 10));
  const auto id = model.admit(request(100, 100)).value();
  EXPECT_EQ(id, 0x1'0000'0001U);
  const PagePool& pool = model.sequencer().ledger().pools()[0];
  EXPECT_EQ(pool.used(), 2);
  EXPECT_EQ(pool.reserved(), 2);
  const Order order = model.take_order();
  ASSERT_EQ(order.ops.size(), 1U);
  EXPECT_EQ(std::get<AdmitOp>(order.ops[0]).sequence.id, id);
  EXPECT_TRUE(order.step.empty());
  EXPECT_FALSE(order.stop);
  EXPECT_EQ(order.round, 1U);
  const Order next = model.take_order();
  EXPECT_TRUE(next.ops.empty());
  EXPECT_EQ(next.round, 2U);
}

TEST(Sequencer, AnEmptyPromptGrows) {
  SequencerModel model(config(2, 4));
  const auto id = model.admit(request(0, 130, SpreadPolicy::kAll)).value();
  for (const std::int32_t tokens : {16, 16, 16, 16, 16, 16, 16, 16, 2}) {
    model.begin({{id, tokens}});
    (void)model.take_order();
    model.commit(id, tokens);
    model.check();
  }
  EXPECT_EQ(model.sequencer().ledger().table().at(id).length, 130);
  EXPECT_EQ(code_of([&] { model.open_step({{id, 1}}); }), ErrorCode::kInvalidArgument);
}

TEST(Sequencer, TooLargeIsNotFull) {
  Sequencer s(config(2, 4));
  EXPECT_EQ(code_of([&] { (void)s.sequences().admit(request(320, 1, SpreadPolicy::kSingle)); }),
            ErrorCode::kTooLarge);
  EXPECT_EQ(code_of([&] { (void)s.sequences().admit(request(512, 1, SpreadPolicy::kAll)); }),
            ErrorCode::kTooLarge);
  EXPECT_EQ(code_of([&] { (void)s.sequences().admit(request(1, INT32_MAX, SpreadPolicy::kAuto)); }),
            ErrorCode::kTooLarge);
  const auto all = s.sequences().admit(request(256, 256, SpreadPolicy::kAll));
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(s.sequences().admit(request(1, 0, SpreadPolicy::kSingle)), std::nullopt);
  EXPECT_EQ(s.sequences().admit(request(1, 0, SpreadPolicy::kAll)), std::nullopt);
  EXPECT_EQ(code_of([&] { (void)s.sequences().admit(request(512, 1, SpreadPolicy::kAll)); }),
            ErrorCode::kTooLarge)
      << "also while the pool is full";
  s.sequences().free(*all);
  EXPECT_TRUE(s.sequences().admit(request(1, 0, SpreadPolicy::kSingle)).has_value());
}

TEST(Sequencer, RaisesALimitWhereThereIsRoom) {
  SequencerModel model(config(2, 4));
  const auto id = model.admit(request(60, 4, SpreadPolicy::kAuto)).value();
  EXPECT_TRUE(model.raise_limit(id, 64)) << "it has that";
  EXPECT_EQ(model.take_order().ops.size(), 1U);
  EXPECT_TRUE(model.raise_limit(id, 65));
  model.check();
  EXPECT_TRUE(model.raise_limit(id, 300)) << "leaves go to the other worker where one is full";
  model.check();
  (void)model.take_order();
  model.check();
  EXPECT_EQ(code_of([&] { (void)model.raise_limit(id, 513); }), ErrorCode::kTooLarge);
  const auto other = model.admit(request(150, 42, SpreadPolicy::kSingle)).value();
  EXPECT_FALSE(model.raise_limit(id, 321)) << "no page is left";
  model.check();
  EXPECT_TRUE(model.take_order().ops.size() == 1U);
  // It decodes up to its new limit, and no further.
  for (int length = 60; length < 300; length += 10) {
    model.begin({{id, 10}});
    (void)model.take_order();
    model.commit(id, 10);
    model.check();
  }
  EXPECT_EQ(code_of([&] { model.open_step({{id, 1}}); }), ErrorCode::kInvalidArgument);
  model.free(other);
  EXPECT_TRUE(model.raise_limit(id, 301));
  model.begin({{id, 1}});
  model.check();
}

TEST(Sequencer, RaisesTheLimitOfASingleSequenceOnItsWorkerAlone) {
  SequencerModel model(config(2, 4));
  const auto id = model.admit(request(60, 4, SpreadPolicy::kSingle)).value();
  EXPECT_EQ(code_of([&] { (void)model.raise_limit(id, 257); }), ErrorCode::kTooLarge);
  EXPECT_TRUE(model.raise_limit(id, 256));
  model.check();
  const Sequence& s = model.sequencer().ledger().table().at(id);
  for (const Leaf& leaf : s.leaves) EXPECT_EQ(leaf.owner, s.home);
}

TEST(Sequencer, RefusesBadLengths) {
  Sequencer s(config(2, 4));
  for (const auto& bad : {request(-1, 5), request(5, -1), request(0, 0), request(INT64_MAX, 1),
                          request(std::int64_t{1} << 31, 1), request(1, INT64_MAX)}) {
    EXPECT_EQ(code_of([&] { (void)s.sequences().admit(bad); }), ErrorCode::kInvalidArgument);
  }
  EXPECT_TRUE(s.take_order().ops.empty());
}

/// Two sequences, one of which may be in a step; a refused call must change nothing.
class SequencerRefuses : public testing::Test {
 protected:
  SequencerRefuses() { (void)model_.take_order(); }

  template <typename Call>
  void expect_refused(ErrorCode code, const Call& call) {
    const Sequence a = model_.sequencer().ledger().table().at(a_);
    const Sequence b = model_.sequencer().ledger().table().at(b_);
    EXPECT_EQ(code_of(call), code);
    model_.check();
    EXPECT_TRUE(same_sequence(model_.sequencer().ledger().table().at(a_), a));
    EXPECT_TRUE(same_sequence(model_.sequencer().ledger().table().at(b_), b));
    const Order order = model_.take_order();
    EXPECT_TRUE(order.ops.empty());
    EXPECT_TRUE(order.step.empty());
  }
  void open_step() {
    model_.begin({{a_, 4}});
    (void)model_.take_order();
  }

  using Requests = std::vector<StepItem>;
  SequencerModel model_{config(2, 10)};
  SequenceId a_ = model_.admit(request(62, 10)).value();
  SequenceId b_ = model_.admit(request(100, 3)).value();
};

TEST_F(SequencerRefuses, BadSteps) {
  const auto begin = [&](const Requests& requests) {
    return [this, requests] { model_.open_step(requests); };
  };
  expect_refused(ErrorCode::kNotFound, begin({{a_, 4}, {99, 1}}));
  expect_refused(ErrorCode::kInvalidArgument, begin({{a_, 4}, {b_, 0}}));
  expect_refused(ErrorCode::kInvalidArgument, begin({{a_, 4}, {b_, -1}}));
  expect_refused(ErrorCode::kInvalidArgument, begin({{a_, 4}, {b_, kMaxStepTokens + 1}}));
  expect_refused(ErrorCode::kInvalidArgument, begin({{a_, 4}, {b_, 4}}));
  expect_refused(ErrorCode::kInvalidArgument, begin({{a_, 4}, {b_, 1}, {a_, 1}}));
  open_step();
  expect_refused(ErrorCode::kFailedPrecondition, begin({{b_, 1}, {a_, 1}}));
}

TEST_F(SequencerRefuses, BadCommits) {
  const auto commit = [&](std::int32_t accepted) {
    return [this, accepted] { model_.commit(a_, accepted); };
  };
  expect_refused(ErrorCode::kFailedPrecondition, commit(1));
  open_step();
  expect_refused(ErrorCode::kInvalidArgument, commit(-1));
  expect_refused(ErrorCode::kInvalidArgument, commit(5));
  model_.commit(a_, 4);
  EXPECT_EQ(model_.sequencer().ledger().table().at(a_).length, 66);
}

TEST_F(SequencerRefuses, BadTruncationsAndFrees) {
  const auto truncate = [&](SequenceId id, std::int64_t length) {
    return [this, id, length] { model_.truncate(id, length); };
  };
  expect_refused(ErrorCode::kNotFound, truncate(99, 0));
  expect_refused(ErrorCode::kInvalidArgument, truncate(a_, 63));
  expect_refused(ErrorCode::kInvalidArgument, truncate(a_, -1));
  expect_refused(ErrorCode::kNotFound, [this] { model_.free(99); });
  open_step();
  expect_refused(ErrorCode::kFailedPrecondition, truncate(a_, 10));
  expect_refused(ErrorCode::kFailedPrecondition, [this] { model_.free(a_); });
}

TEST_F(SequencerRefuses, ToEndAStepThatNobodyWasToldOf) {
  model_.begin({{a_, 4}});
  EXPECT_EQ(code_of([&] { model_.commit(a_, 4); }), ErrorCode::kFailedPrecondition)
      << "its rows do not exist";
  EXPECT_EQ(model_.take_order().step.size(), 1U);
  model_.commit(a_, 4);
}

TEST_F(SequencerRefuses, AnAbortedStepIsNotOrdered) {
  model_.begin({{a_, 4}});
  model_.commit(a_, 0);
  model_.truncate(a_, 10);  // the step's epoch is over
  EXPECT_TRUE(model_.take_order().step.empty());
  model_.check();
}

TEST(Sequencer, EpochsCountAdmissionAndTruncation) {
  SequencerModel model(config(1, 10));
  const auto id = model.admit(request(100, 10)).value();
  EXPECT_EQ(model.sequencer().ledger().table().at(id).epoch, 1U);
  model.begin({{id, 1}});
  EXPECT_EQ(model.take_order().step.at(0).epoch, 1U);
  model.commit(id, 1);
  EXPECT_EQ(model.sequencer().ledger().table().at(id).epoch, 1U)
      << "growth does not begin an epoch";
  model.truncate(id, 101);
  EXPECT_EQ(model.sequencer().ledger().table().at(id).epoch, 2U);
  model.begin({{id, 1}});
  EXPECT_EQ(model.take_order().step.at(0).epoch, 2U);
}

TEST(Sequencer, IdsAreNeverUsedTwice) {
  Sequencer s(config(1, 2));
  std::vector<SequenceId> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(s.sequences().admit(request(64, 0)).value());
    s.sequences().free(ids.back());
  }
  for (std::size_t i = 1; i < ids.size(); ++i) EXPECT_GT(ids[i], ids[i - 1]);
  Sequencer later({.placement = {.workers = 1, .model = default_cost_model(64)},
                   .pages_per_worker = 2,
                   .incarnation = 2});
  EXPECT_GT(later.sequences().admit(request(64, 0)).value(), ids.back());
}

TEST(Sequencer, TruncateGivesPagesBackToTheReservation) {
  SequencerModel model(config(1, 4));
  const auto id = model.admit(request(250, 6)).value();
  EXPECT_EQ(model.sequencer().ledger().pools()[0].used(), 4);
  model.truncate(id, 65);
  EXPECT_EQ(model.sequencer().ledger().pools()[0].used(), 2);
  EXPECT_EQ(model.sequencer().ledger().pools()[0].available(), 0)
      << "still promised to this sequence";
  EXPECT_EQ(model.admit(request(1, 0)), std::nullopt);
  model.check();
}

TEST(Sequencer, AStepOverALeafBorderOpensTheLeaf) {
  SequencerModel model(config(2, 10));
  const auto id = model.admit(request(63, 20, SpreadPolicy::kAll)).value();
  const Order admitted = model.take_order();
  EXPECT_EQ(model.sequencer().ledger().placements(), 2U)
      << "the leaf of the prompt, the reserved one";
  model.begin({{id, 2}});
  const Order order = model.take_order();
  ASSERT_EQ(order.ops.size(), 1U);
  const auto& extend = std::get<ExtendOp>(order.ops[0]);
  EXPECT_EQ(extend.leaf, 1);
  EXPECT_EQ(extend.pages.size(), 1U);
  EXPECT_NE(extend.owner, model.sequencer().ledger().table().at(id).leaves[0].owner);
  model.commit(id, 1);  // the second token is refused: its leaf stays open
  model.check();
  model.begin({{id, 1}});
  EXPECT_TRUE(model.take_order().ops.size() == 1U) << "the commit alone: the page is there";
}

TEST(Sequencer, StepsOfSequencesAreApart) {
  SequencerModel model(config(2, 10));
  const auto a = model.admit(request(62, 10)).value();
  const auto b = model.admit(request(100, 3)).value();
  model.open_step({{a, 2}});
  EXPECT_EQ(code_of([&] { model.open_step({{b, 1}, {a, 1}}); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] {
              model.order_round({{a, 0, 0}, {b, 0, 0}});
            }),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] {
              model.order_round({{a, 0, 0}, {a, 0, 1}});
            }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.order_round({{a, 0, -1}}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.order_round({{a, 0, 0}}, {1, 0}); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.order_round({}); }), ErrorCode::kInvalidArgument);
  model.check();
  model.order_round({{a, 0, 3}}, {0, 2});
  Order order = model.take_order();
  EXPECT_EQ(order.step.at(0).layer, 3);
  EXPECT_EQ(order.canary.head, 2);
  model.open_step({{b, 3}});
  model.order_round({{b, 0, 0}, {a, 0, 4}}, {1, 0});
  EXPECT_EQ(code_of([&] { model.order_round({{a, 0, 4}}); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { model.commit(b, 1); }), ErrorCode::kFailedPrecondition) << "not taken";
  model.commit(b, 0);  // its item of the round is withdrawn
  order = model.take_order();
  ASSERT_EQ(order.step.size(), 1U);
  EXPECT_EQ(order.canary.item, 0);
  EXPECT_EQ(model.sequencer().steps().open_tokens(a), 2);
  EXPECT_EQ(model.sequencer().steps().open_tokens(b), 0);
  EXPECT_EQ(code_of([&] { model.commit(b, 0); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { model.commit(a, 3); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { model.commit(a, -1); }), ErrorCode::kInvalidArgument);
  model.commit(a, 1);
  model.check();
  EXPECT_EQ(model.sequencer().ledger().table().at(a).length, 63);
}

TEST(Sequencer, PagesOfAClosedSequenceStayTakenUntilItsOrderIsDrained) {
  SequencerModel model(config(1, 4));
  const auto a = model.admit(request(100, 28)).value();
  const auto b = model.admit(request(100, 28)).value();
  const std::uint64_t admitted = model.take_order().round;
  model.close(a);
  model.release_closed(admitted);
  EXPECT_EQ(model.sequencer().sequences().closing(), 1U);
  EXPECT_EQ(model.sequencer().ledger().load().workers()[0].homes, 1) << "no load any more";
  EXPECT_EQ(model.admit(request(1, 0)), std::nullopt);
  EXPECT_EQ(code_of([&] { model.close(a); }), ErrorCode::kNotFound);
  const std::uint64_t closed = model.take_order().round;
  model.close(b);
  model.release_closed(closed);
  model.check();
  EXPECT_EQ(model.sequencer().sequences().closing(), 1U) << "b, whose end nobody was told of";
  EXPECT_EQ(model.sequencer().ledger().pools()[0].available(), 2);
  EXPECT_NE(model.admit(request(128, 0)), std::nullopt);
  model.release_closed(model.take_order().round);
  EXPECT_EQ(model.sequencer().sequences().closing(), 0U);
  model.check();
}

TEST(Sequencer, IdsMayBeGiven) {
  SequencerModel model(config(1, 4));
  const AdmitAs given{.tag = 1, .id = 0x7'0000'0001};
  EXPECT_EQ(model.admit(request(64, 0), given), given.id);
  EXPECT_EQ(code_of([&] { (void)model.admit(request(64, 0), given); }), ErrorCode::kAlreadyExists);
  (void)model.take_order();
  model.close(given.id);
  EXPECT_EQ(code_of([&] { (void)model.admit(request(64, 0), given); }), ErrorCode::kAlreadyExists);
  EXPECT_EQ(model.admit(request(64, 0)), SequenceId{0x1'0000'0001}) << "its own counter";
}

TEST(SharedBlocks, NamesOfAnotherSizeAndOfRowsThatAreNotThereAreRefused) {
  Sequencer sequencer(
      {.placement = {.workers = 1, .model = default_cost_model(256)}, .pages_per_worker = 20});
  const Prefix small{.block_tokens = 64, .key_bytes = 16, .keys = std::string(16, 'a')};
  const Prefix large{.block_tokens = 128, .key_bytes = 16, .keys = std::string(16, 'b')};
  Sequences& sequences = sequencer.sequences();
  const SequenceId id =
      sequences.admit({.prompt_tokens = 200, .max_new_tokens = 100, .prefix = small}).value();
  const auto name = [&](const Prefix& names, std::int64_t first) {
    return code_of([&] { sequences.name_blocks(id, names, first); });
  };
  EXPECT_EQ(name(small, 1), ErrorCode::kFailedPrecondition);  // the prompt is arriving
  sequences.prompt_arrived(id);
  EXPECT_EQ(name(large, 0), ErrorCode::kInvalidArgument);
  for (const std::int64_t first : {std::int64_t{-1}, std::int64_t{3}, std::int64_t{1} << 60}) {
    EXPECT_EQ(name(small, first), ErrorCode::kInvalidArgument) << first;
  }
  EXPECT_EQ(sequencer.ledger().pages().blocks().size(), 1U);
  EXPECT_EQ(name(small, 2), ErrorCode::kOk);
  EXPECT_EQ(code_of([&] { sequences.name_blocks(id + 1, small, 0); }), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace tributary
