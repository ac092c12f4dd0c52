// Thousands of random calls against the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/sequencer/sequencer.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/sequencer/sequencer_model.h"

namespace tributary {
namespace {

struct RandomCase {
  const char* name;
  int workers;
  int leaf_tokens;
  std::int32_t pages;
  std::int64_t max_prompt;
};

class SequencerRandom : public testing::TestWithParam<RandomCase> {
 protected:
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

  void admit() {
    constexpr std::array kPolicies{SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll};
    const AdmitRequest request{
        .prompt_tokens = between(0, 3) == 0 ? between(0, 2) : between(0, GetParam().max_prompt),
        .max_new_tokens = between(1, 200),
        .spread = kPolicies[static_cast<std::size_t>(between(0, 2))]};
    const AdmitAs as{
        .tag = ++tag_,
        .id = between(0, 1) == 0 ? 0 : (SequenceId{77} << 32) + static_cast<SequenceId>(tag_)};
    const bool arrived = between(0, 1) != 0;
    try {
      const auto id = model_.admit(request, as);
      ++(id ? admitted_ : full_);
      if (id && arrived) model_.sequencer().sequences().prompt_arrived(*id);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kTooLarge);
      ++too_large_;
    }
  }

  SequenceId any() {
    auto it = model_.sequences().begin();
    std::advance(it, between(0, static_cast<std::int64_t>(model_.sequences().size()) - 1));
    return it->first;
  }

  /// Some of those that are not in a step.
  std::vector<StepItem> draw_step(std::int64_t one_in) {
    std::vector<StepItem> requests;
    for (const auto& [id, sequence] : model_.sequences()) {
      const std::int64_t room = sequence.limit - sequence.length;
      if (room == 0 || model_.open_steps().contains(id) || between(0, one_in - 1) == 0) continue;
      requests.push_back({id, static_cast<std::int32_t>(
                                  between(1, std::min<std::int64_t>(room, kMaxStepTokens)))});
    }
    std::shuffle(requests.begin(), requests.end(), random_);
    return requests;
  }

  /// A step of all drawn sequences together, from its beginning to its end.
  void whole_step() {
    const auto requests = draw_step(4);
    if (requests.empty()) return;
    model_.begin(requests);  // never throws: growth was promised
    model_.check();
    (void)model_.take_order();
    model_.check();
    if (HasFatalFailure()) return;
    ++steps_;
    if (between(0, 4) == 0) {
      model_.abort_all();
      return;
    }
    for (const auto& request : requests) model_.commit(request.id, draw_accepted(request.tokens));
  }

  std::int32_t draw_accepted(std::int32_t tokens) {
    return static_cast<std::int32_t>(between(0, 2) == 0 ? between(0, tokens) : tokens);
  }

  void open_step() {
    auto requests = draw_step(2);
    requests.resize(
        std::min<std::size_t>(requests.size(), static_cast<std::size_t>(between(1, 3))));
    model_.open_step(requests);
  }

  void order_round() {
    std::vector<StepItem> items;
    for (const auto& [id, open] : model_.open_steps()) {
      if (between(0, 2) > 0) items.push_back({id, 0, static_cast<std::int32_t>(between(0, 60))});
    }
    std::shuffle(items.begin(), items.end(), random_);
    CanaryOrder canary;
    if (between(0, 1) == 0) {
      canary = {static_cast<std::int32_t>(between(0, static_cast<std::int64_t>(items.size()) - 1)),
                5};
    }
    if (model_.round_ordered()) {
      EXPECT_EQ(code_of([&] { model_.order_round(items, canary); }),
                ErrorCode::kFailedPrecondition);
    } else if (items.empty()) {
      EXPECT_EQ(code_of([&] { model_.order_round({}); }), ErrorCode::kInvalidArgument);
    } else {
      model_.order_round(items, canary);
      ++rounds_;
    }
  }

  void commit() {
    auto it = model_.open_steps().begin();
    std::advance(it, between(0, static_cast<std::int64_t>(model_.open_steps().size()) - 1));
    const auto [id, open] = *it;
    const std::int32_t accepted = between(0, 4) == 0 ? 0 : draw_accepted(open.tokens);
    if (accepted > 0 && !open.taken) {
      EXPECT_EQ(code_of([&, id = id] { model_.commit(id, accepted); }),
                ErrorCode::kFailedPrecondition);
    } else {
      model_.commit(id, accepted);
      ++commits_;
    }
  }

  void raise_limit() {
    const SequenceId id = any();
    const std::int64_t limit =
        model_.sequences().at(id).limit + between(0, GetParam().leaf_tokens) - 20;
    bool raised = false;
    const ErrorCode code = code_of([&] { raised = model_.raise_limit(id, limit); });
    EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kTooLarge);
    if (raised) ++raised_;
    if (code == ErrorCode::kOk && !raised) ++no_room_;
  }

  void truncate() {
    const SequenceId id = any();
    const std::int64_t length = model_.sequences().at(id).length;
    const std::int64_t to = between(0, 2) == 0 ? length : between(0, length);
    if (model_.open_steps().contains(id)) {
      EXPECT_EQ(code_of([&] { model_.truncate(id, to); }), ErrorCode::kFailedPrecondition);
    } else {
      model_.truncate(id, to);
    }
  }

  void free() {
    const SequenceId id = any();
    if (model_.open_steps().contains(id)) {
      EXPECT_EQ(code_of([&] { model_.free(id); }), ErrorCode::kFailedPrecondition);
      EXPECT_EQ(code_of([&] { model_.close(id); }), ErrorCode::kFailedPrecondition);
    } else if (between(0, 1) == 0) {
      model_.free(id);
    } else {
      model_.close(id);
    }
  }

  void move() {
    const SequenceId id = any();
    if (between(0, 3) > 0) model_.sequencer().sequences().prompt_arrived(id);
    const Sequence& s = model_.sequencer().ledger().table().at(id);
    const std::int64_t full = s.length / GetParam().leaf_tokens;
    const std::int64_t first = between(0, 2) == 0 ? full : between(0, full - 1 + (full == 0));
    const LeafMove move{.id = id,
                        .first_leaf = static_cast<std::int32_t>(first),
                        .end_leaf = static_cast<std::int32_t>(first + between(0, 2) / 2 + 1),
                        .to = static_cast<std::int32_t>(between(0, GetParam().workers - 1))};
    const ErrorCode code = code_of([&] { model_.sequencer().moves().begin(move); });
    switch (code) {
      case ErrorCode::kOk:
        ++moves_;
        break;
      case ErrorCode::kInvalidArgument:
      case ErrorCode::kFailedPrecondition:
      case ErrorCode::kPoolFull:
      case ErrorCode::kAlreadyExists:
        break;
      default:
        ADD_FAILURE() << error_code_name(code);
    }
  }

  /// A pool's report may be behind, but never ahead of the orders that it was given.
  void release_closed() {
    const auto round = static_cast<std::int64_t>(model_.round());
    model_.release_closed(
        static_cast<std::uint64_t>(between(std::max<std::int64_t>(round - 3, 0), round)));
  }

  void act() {
    const std::int64_t draw = between(0, 99);
    if (model_.sequences().empty() && between(0, 3) == 0) {
      release_closed();
    } else if (draw < 20 || model_.sequences().empty()) {
      admit();
    } else if (draw < 28) {
      free();
    } else if (draw < 36) {
      truncate();
    } else if (draw < 40) {
      release_closed();
    } else if (draw < 42) {
      raise_limit();
    } else if (draw < 60) {
      if (!model_.open_steps().empty()) {
        if (between(0, 2) == 0) model_.abort_all();
      } else {
        whole_step();
      }
    } else if (draw < 68) {
      open_step();
    } else if (draw < 78) {
      order_round();
    } else if (draw < 86) {
      move();
    } else if (draw < 92) {
      model_.order_copies(between(0, 12));
    } else if (!model_.open_steps().empty()) {
      commit();
    }
  }

  std::mt19937 random_{static_cast<std::uint32_t>(GetParam().workers)};
  SequencerModel model_{{.placement = {.workers = GetParam().workers,
                                       .model = default_cost_model(GetParam().leaf_tokens, 2)},
                         .pages_per_worker = GetParam().pages,
                         .incarnation = 9}};
  std::int64_t tag_ = 0;
  int admitted_ = 0, full_ = 0, too_large_ = 0, steps_ = 0, rounds_ = 0, commits_ = 0;
  int moves_ = 0, raised_ = 0, no_room_ = 0;
};

TEST_P(SequencerRandom, StaysAtOneWithTheModel) {
  for (int i = 0; i < 4000; ++i) {
    act();
    if (between(0, 3) == 0) {
      (void)model_.take_order();
      model_.order_ended(between(0, 9) > 0);
    }
    model_.check();
    if (HasFatalFailure()) FAIL() << "after call " << i;
  }
  EXPECT_GT(admitted_, 100);
  EXPECT_GT(full_, 10) << "the pool must have been full";
  EXPECT_GT(raised_, 10);
  EXPECT_GT(no_room_, 0) << "for more of a sequence either";
  EXPECT_GT(too_large_, 0);
  EXPECT_GT(steps_, 20);
  EXPECT_GT(rounds_, 50);
  EXPECT_GT(commits_, 50);
  if (GetParam().workers > 1) {
    EXPECT_GT(moves_, 10);
    EXPECT_GT(model_.sequencer().moves().totals().completed, 3U);
    EXPECT_GT(model_.sequencer().moves().totals().cancelled, 3U);
  }

  model_.abort_all();
  while (!model_.sequences().empty()) free();
  const std::uint64_t round = model_.take_order().round;
  model_.order_ended(true);
  model_.release_closed(round);
  model_.check();
  for (const PagePool& pool : model_.sequencer().ledger().pools()) {
    EXPECT_EQ(pool.available(), pool.total());
  }
  for (const WorkerLoad& load : model_.sequencer().ledger().load().workers()) {
    EXPECT_EQ(load.tokens, 0);
    EXPECT_EQ(load.homes, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(, SequencerRandom,
                         testing::Values(RandomCase{"OneWorker", 1, 64, 40, 2600},
                                         RandomCase{"TwoWorkers", 2, 128, 30, 2000},
                                         RandomCase{"ThreeSmall", 3, 64, 9, 500},
                                         RandomCase{"Eight", 8, 256, 24, 4000},
                                         RandomCase{"EightOfOneLeafPages", 8, 64, 24, 4000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tributary
