// Thousands of random calls against the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/base/error.h"
#include "core/pool/sequencer.h"
#include "tests/core/expect_error.h"
#include "tests/core/sequencer_model.h"

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
        .tag = ++tag_,
        .prompt_tokens = between(0, 3) == 0 ? between(0, 2) : between(0, GetParam().max_prompt),
        .max_new_tokens = between(1, 200),
        .spread = kPolicies[static_cast<std::size_t>(between(0, 2))]};
    try {
      ++(model_.admit(request) ? admitted_ : full_);
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

  void begin_step() {
    std::vector<Sequencer::StepRequest> requests;
    for (const auto& [id, sequence] : model_.sequences()) {
      const std::int64_t room = sequence.limit - sequence.length;
      if (room == 0 || between(0, 3) == 0) continue;
      requests.push_back({id, static_cast<std::int32_t>(
                                  between(1, std::min<std::int64_t>(room, kMaxStepTokens)))});
    }
    std::shuffle(requests.begin(), requests.end(), random_);
    model_.begin_step(requests);  // never throws: growth was promised
    ++steps_;
  }

  void end_step() {
    if (between(0, 4) == 0) {
      model_.abort_step();
      return;
    }
    std::vector<std::int32_t> accepted;
    for (const auto& request : model_.open_step()) {
      accepted.push_back(static_cast<std::int32_t>(between(0, 2) == 0 ? between(0, request.tokens)
                                                                      : request.tokens));
    }
    model_.commit_step(accepted);
  }

  void truncate() {
    const SequenceId id = any();
    const std::int64_t length = model_.sequences().at(id).length;
    const std::int64_t to = between(0, 2) == 0 ? length : between(0, length);
    if (model_.in_step(id)) {
      EXPECT_EQ(code_of([&] { model_.truncate(id, to); }), ErrorCode::kFailedPrecondition);
    } else {
      model_.truncate(id, to);
    }
  }

  void free() {
    const SequenceId id = any();
    if (model_.in_step(id)) {
      EXPECT_EQ(code_of([&] { model_.free(id); }), ErrorCode::kFailedPrecondition);
    } else {
      model_.free(id);
    }
  }

  void act() {
    const std::int64_t draw = between(0, 99);
    if (draw < 20 || model_.sequences().empty()) {
      admit();
    } else if (draw < 28) {
      free();
    } else if (draw < 36) {
      truncate();
    } else if (model_.step_open()) {
      (void)model_.take_order();
      model_.check();
      if (!HasFatalFailure()) end_step();
    } else {
      begin_step();
    }
  }

  std::mt19937 random_{static_cast<std::uint32_t>(GetParam().workers)};
  SequencerModel model_{{.placement = {.workers = GetParam().workers,
                                       .leaf_tokens = GetParam().leaf_tokens,
                                       .costs = {}},
                         .pages_per_worker = GetParam().pages,
                         .incarnation = 9}};
  std::int64_t tag_ = 0;
  int admitted_ = 0, full_ = 0, too_large_ = 0, steps_ = 0;
};

TEST_P(SequencerRandom, StaysAtOneWithTheModel) {
  for (int i = 0; i < 4000; ++i) {
    act();
    if (between(0, 5) == 0 && !model_.step_open()) (void)model_.take_order();
    model_.check();
    if (HasFatalFailure()) FAIL() << "after call " << i;
  }
  EXPECT_GT(admitted_, 100);
  EXPECT_GT(full_, 10) << "the pool must have been full";
  EXPECT_GT(too_large_, 0);
  EXPECT_GT(steps_, 100);

  if (model_.step_open()) {
    (void)model_.take_order();
    model_.abort_step();
  }
  while (!model_.sequences().empty()) model_.free(any());
  (void)model_.take_order();
  model_.check();
  for (const PagePool& pool : model_.sequencer().pools()) {
    EXPECT_EQ(pool.available(), pool.total());
  }
  for (const WorkerLoad& load : model_.sequencer().loads()) {
    EXPECT_EQ(load.tokens, 0);
    EXPECT_EQ(load.homes, 0);
    EXPECT_EQ(load.inbound_roots, 0);
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
