// Leaves that move between workers all the time change no bit of any output.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/sequencer/move_schedule.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/interface/remote_backend.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

std::unique_ptr<Backend> cpu(int /*rank*/) {
  return make_cpu_backend({});
}

void expect_all_free(const Sequencer& sequencer) {
  for (const PagePool& pool : sequencer.ledger().pools()) EXPECT_EQ(pool.available(), pool.total());
  EXPECT_TRUE(sequencer.moves().running().empty());
}

/// On one worker, whole, and with the outputs of the prompts' tokens: truncation may uncover them.
PoolOutputs unmoved(const PoolSetup& setup, std::vector<PoolRequest> requests) {
  for (PoolRequest& request : requests) {
    request.max_new_tokens += std::exchange(request.prompt_tokens, 0);
  }
  PoolSetup alone;
  alone.shape = setup.shape;
  alone.layers = setup.layers;
  alone.leaf_tokens = setup.leaf_tokens;
  alone.backend = cpu;
  return run_pool(alone,
                  [&](PoolLeader& leader) {
                    leader.decode(requests,
                                  {.tokens = [](std::int64_t, std::int64_t) { return 16; }});
                  })
      .outputs;
}

/// Outputs that differ from `expected`, which may have more.
std::size_t wrong(const PoolOutputs& outputs, PoolOutputs expected) {
  std::erase_if(expected, [&](const auto& entry) { return !outputs.contains(entry.first); });
  return differing_outputs(outputs, expected);
}

/// Random rounds of random sequences at their own layers; before each, random moves begin, some
/// copies are ordered, sequences are truncated, freed early and admitted.
class RandomMoves {
 public:
  RandomMoves(PoolLeader& leader, const PoolSetup& setup, std::uint32_t seed)
      : leader_(leader), setup_(setup), random_(seed) {}

  std::uint64_t moved_in_steps = 0;

  void run(const std::vector<PoolRequest>& requests) {
    std::size_t next = 0;
    while (next < requests.size() || !layer_.empty()) {
      if (next < requests.size() && (layer_.empty() || one_in(4))) {
        if (const auto id = leader_.admit(requests[next])) {
          layer_.emplace(*id, 0);
          ++next;
        }
      }
      if (layer_.empty()) continue;
      if (one_in(25)) truncate();
      if (one_in(60)) free(any());
      for (int i = 0; i < 2; ++i) begin_move();
      (void)leader_.sequencer.moves().order_copies(random_() % 7);
      const std::uint64_t before = leader_.sequencer.moves().totals().completed;
      round();
      if (in_step_) moved_in_steps += leader_.sequencer.moves().totals().completed - before;
    }
  }

 private:
  bool one_in(unsigned n) { return random_() % n == 0; }

  SequenceId any() {
    auto it = layer_.begin();
    std::advance(it,
                 static_cast<std::ptrdiff_t>(random_() % std::max<std::size_t>(1, layer_.size())));
    return it->first;
  }

  void begin_move() {
    if (layer_.empty()) return;
    const Sequence& s = leader_.sequencer.ledger().table().at(any());
    const auto full = static_cast<std::uint32_t>(s.length / setup_.leaf_tokens);
    if (full == 0) return;
    const auto first = static_cast<std::int32_t>(random_() % full);
    const LeafMove move{.id = s.id,
                        .first_leaf = first,
                        .end_leaf = first + 1 + static_cast<std::int32_t>(random_() % 2),
                        .to = static_cast<std::int32_t>(random_()) & 3};
    const ErrorCode code = code_of([&] { leader_.sequencer.moves().begin(move); });
    EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kInvalidArgument ||
                code == ErrorCode::kAlreadyExists || code == ErrorCode::kPoolFull)
        << error_code_name(code);
  }

  void abort(SequenceId id) {
    if (leader_.sequencer.steps().open_tokens(id) > 0) leader_.sequencer.steps().commit(id, 0);
    layer_.at(id) = 0;
  }
  void truncate() {
    const SequenceId id = any();
    abort(id);
    const std::int64_t length = leader_.sequencer.ledger().table().at(id).length;
    leader_.sequencer.sequences().truncate(
        id, length - static_cast<std::int64_t>(random_()) % std::min<std::int64_t>(length + 1, 90));
  }
  void free(SequenceId id) {
    abort(id);
    leader_.sequencer.sequences().free(id);
    layer_.erase(id);
  }

  void round() {
    std::vector<StepItem> items;
    for (const auto& [id, next] : layer_) {
      if (one_in(3)) continue;
      const Sequence& s = leader_.sequencer.ledger().table().at(id);
      if (leader_.sequencer.steps().open_tokens(id) == 0) {
        const auto tokens = std::min<std::int64_t>(1 + random_() % 6, s.limit_tokens - s.length);
        leader_.sequencer.steps().open(
            std::vector<StepItem>{{id, static_cast<std::int32_t>(tokens)}});
      }
      items.push_back({id, 0, next});
    }
    if (items.empty()) {
      EXPECT_TRUE(leader_.lead().status.ok());
      return;
    }
    (void)leader_.round(items);
    in_step_ = false;
    for (const auto& item : items) {
      if (++layer_.at(item.id) < setup_.layers) {
        in_step_ = true;
        continue;
      }
      layer_.at(item.id) = 0;
      leader_.commit(item.id);
      const Sequence& s = leader_.sequencer.ledger().table().at(item.id);
      if (s.length == s.limit_tokens) free(item.id);
    }
  }

  PoolLeader& leader_;
  const PoolSetup& setup_;
  std::mt19937 random_;
  std::map<SequenceId, std::int32_t> layer_;
  bool in_step_ = false;
};

void move_at_random(const AttentionShape& shape) {
  const std::vector<PoolRequest> requests{{1, 60, 70},  {2, 127, 30}, {3, 0, 140}, {4, 330, 40},
                                          {5, 500, 20}, {6, 64, 20},  {7, 200, 80}};
  PoolSetup setup;
  setup.shape = shape;
  setup.layers = 3;
  setup.backend = cpu;
  const PoolOutputs expected = unmoved(setup, requests);
  std::uint32_t seed = 0;
  for (const int workers : {2, 3, 4}) {
    for (const SpreadPolicy spread : {SpreadPolicy::kAll, SpreadPolicy::kSingle}) {
      setup.workers = workers;
      setup.pages = spread == SpreadPolicy::kAll ? 24 : 40;
      setup.spread = spread;
      setup.exchange = ++seed % 2 == 0 ? Exchange::kAllGather : Exchange::kAllToAll;
      const PoolOutputs outputs = run_pool(setup, [&](PoolLeader& leader) {
                                    RandomMoves moves(leader, setup, seed);
                                    moves.run(requests);
                                    EXPECT_GT(leader.sequencer.moves().totals().completed, 30U);
                                    EXPECT_GT(leader.sequencer.moves().totals().cancelled, 0U);
                                    EXPECT_GT(moves.moved_in_steps, 0U)
                                        << "between the layers of a step";
                                    expect_all_free(leader.sequencer);
                                  }).outputs;
      EXPECT_GT(outputs.size(), 300U);
      EXPECT_EQ(wrong(outputs, expected), 0U) << workers << " workers";
    }
  }
}

TEST(PoolMoves, LeavesThatMoveAtRandomChangeNoBit) {
  move_at_random(PoolSetup().shape);
}

TEST(PoolMoves, LeavesThatMoveAtRandomChangeNoBitOfASelection) {
  AttentionShape shape = PoolSetup().shape;
  shape.topk = 40;
  move_at_random(shape);
}

TEST(PoolMoves, LeavesThatMoveAtRandomChangeNoBitOfRowsOfCodes) {
  AttentionShape shape = PoolSetup().shape;
  shape.kv_lora_rank = 128;
  shape.row_format = RowFormat::kFp8DsMla;
  move_at_random(shape);
}

TEST(PoolMoves, MemoryThatTheHostCannotReadMovesToo) {
  const std::vector<PoolRequest> requests{{1, 60, 20}, {4, 330, 10}, {7, 200, 30}};
  PoolSetup setup;
  setup.workers = 3;
  setup.spread = SpreadPolicy::kAll;
  const PoolOutputs expected = unmoved(setup, requests);
  setup.backend = [](int) { return std::make_unique<test::RemoteBackend>(make_cpu_backend({})); };
  const PoolOutputs outputs = run_pool(setup, [&](PoolLeader& leader) {
                                RandomMoves moves(leader, setup, 3);
                                moves.run(requests);
                                EXPECT_GT(leader.sequencer.moves().totals().completed, 5U);
                                expect_all_free(leader.sequencer);
                              }).outputs;
  EXPECT_EQ(wrong(outputs, expected), 0U);
}

/// One sequence of five leaves on worker `home`, decoded by `steps` tokens; `during` is called
/// before each.
PoolOutputs decode_one(PoolSetup setup, int steps,
                       const std::function<void(PoolLeader&, SequenceId, int)>& during) {
  setup.workers = 2;
  setup.spread = SpreadPolicy::kSingle;
  setup.backend = cpu;
  return run_pool(setup,
                  [&](PoolLeader& leader) {
                    const SequenceId id = leader.admit({1, 330, 20}).value();
                    for (int step = 0; step < steps; ++step) {
                      during(leader, id, step);
                      (void)leader.step({{id, 1}});
                    }
                    leader.sequencer.sequences().free(id);
                    expect_all_free(leader.sequencer);
                  })
      .outputs;
}

std::int32_t other_worker(const PoolLeader& leader, SequenceId id) {
  return 1 - leader.sequencer.ledger().table().at(id).home;
}

TEST(PoolMoves, TheRowsAreReadWhereTheyWentAndNotBefore) {
  const PoolOutputs expected = unmoved({}, {{1, 330, 20}});
  const auto move_with = [&](bool copied) {
    const PoolOutputs outputs = decode_one({}, 6, [&](PoolLeader& leader, SequenceId id, int step) {
      if (step == 0) {
        leader.sequencer.moves().begin({id, 1, 4, other_worker(leader, id)});
        EXPECT_EQ(leader.sequencer.moves().order_copies(4), 4);  // of 3 pages of 2 layers
      }
      if (step == 2) {
        EXPECT_EQ(leader.sequencer.moves().order_copies(100), 2);
        Order order = leader.sequencer.take_order();
        if (!copied) order.copies.clear();
        const RoundReport report = leader.lead(order);
        EXPECT_TRUE(report.status.ok());
        EXPECT_EQ(report.copy_us > 0, copied);
      }
      const auto owners = std::ranges::count(leader.sequencer.ledger().table().at(id).leaves,
                                             other_worker(leader, id), &Leaf::owner);
      EXPECT_EQ(owners, step < 2 ? 0 : 3);
      EXPECT_EQ(leader.sequencer.ledger().table().at(id).epoch, 1U);
    });
    return wrong(outputs, expected);
  };
  EXPECT_EQ(move_with(true), 0U);
  EXPECT_GT(move_with(false), 0U) << "the pages were NaN";
}

TEST(PoolMoves, AWorkerIsDrainedWhileItsSequencesDecodeAndNoBitChanges) {
  const std::vector<PoolRequest> requests{{1, 260, 90}, {2, 127, 90}, {4, 330, 90}, {5, 500, 90}};
  PoolSetup setup;
  setup.workers = 3;
  setup.spread = SpreadPolicy::kAll;
  setup.backend = cpu;
  const PoolOutputs expected = unmoved(setup, requests);
  constexpr std::int32_t kDrained = 1;
  const PoolOutputs outputs =
      run_pool(setup, [&](PoolLeader& leader) {
        std::vector<SequenceId> ids;
        for (const PoolRequest& request : requests) ids.push_back(leader.admit(request).value());
        leader.sequencer.moves().drain_worker(kDrained, true);
        MoveSchedule move_schedule(move_schedule_config(1e9, 64), leader.sequencer);
        Time now{};
        for (int step = 0; step < 80; ++step) {
          now += std::chrono::seconds(1);
          move_schedule.prepare(now);
          std::vector<StepItem> all;
          for (const SequenceId id : ids) all.push_back({id, 1});
          (void)leader.step(all);
          (void)leader.sequencer.give_away([step](SequenceId) { return step % 8 > 0; });
        }
        EXPECT_GT(leader.sequencer.moves().totals().completed, 3U);
        const PagePool& pool = leader.sequencer.ledger().pools()[kDrained];
        EXPECT_EQ(pool.used() + pool.reserved(), 0);
        EXPECT_EQ(leader.sequencer.ledger().load().workers()[kDrained].homes, 0);
        for (const SequenceId id : ids) leader.sequencer.sequences().free(id);
        leader.sequencer.moves().drain_worker(kDrained, false);
        expect_all_free(leader.sequencer);
      }).outputs;
  EXPECT_EQ(outputs.size(), 2 * 80 * requests.size());
  EXPECT_EQ(wrong(outputs, expected), 0U);
}

TEST(PoolMoves, AFailedCopyCancelsTheMoveAndThePoolGoesOn) {
  for (const std::string_view failing : {"load_rows", "synchronize"}) {
    std::atomic<bool> fail_once = false;
    PoolSetup setup;
    setup.hook = [&](int, std::string_view call) {
      if (call == failing && fail_once.exchange(false)) fail(ErrorCode::kIo, "planted");
    };
    const PoolOutputs outputs =
        decode_one(setup, 4, [&](PoolLeader& leader, SequenceId id, int step) {
          if (step != 1) return;
          leader.sequencer.moves().begin({id, 0, 2, other_worker(leader, id)});
          (void)leader.sequencer.moves().order_copies(3);
          fail_once = true;
          EXPECT_EQ(leader.lead().status.code(), ErrorCode::kWorkerFailed);
          EXPECT_TRUE(leader.sequencer.moves().running().empty());
          EXPECT_EQ(leader.sequencer.moves().totals().cancelled, 1U);
        });
    EXPECT_EQ(wrong(outputs, unmoved({}, {{1, 330, 20}})), 0U);
  }
}

TEST(PoolMoves, AnAdmissionTakesThePagesOfAMove) {
  PoolSetup setup;
  setup.pages = 10;
  (void)decode_one(setup, 1, [](PoolLeader& leader, SequenceId id, int) {
    const auto small = leader.admit({3, 127, 1}).value();  // two of the other worker's ten pages
    ASSERT_NE(leader.sequencer.ledger().table().at(small).home,
              leader.sequencer.ledger().table().at(id).home);
    leader.sequencer.moves().begin({id, 0, 5, other_worker(leader, id)});
    (void)leader.sequencer.moves().order_copies(4);
    EXPECT_TRUE(leader.lead().status.ok());
    (void)leader.sequencer.moves().order_copies(4);
    EXPECT_FALSE(leader.admit({2, 575, 1}));
    EXPECT_EQ(leader.sequencer.moves().running().size(), 1U) << "it would not have helped";
    const auto second = leader.admit({2, 511, 1});
    ASSERT_TRUE(second);
    EXPECT_TRUE(leader.sequencer.moves().running().empty());
    const Order order = leader.sequencer.take_order();
    EXPECT_TRUE(order.copies.empty());
    EXPECT_TRUE(leader.lead(order).status.ok());
    leader.sequencer.sequences().free(*second);
    leader.sequencer.sequences().free(small);
  });
}

TEST(PoolMoves, APromptThatIsArrivingStays) {
  PoolSetup setup;
  setup.workers = 2;
  setup.spread = SpreadPolicy::kSingle;
  setup.pushed = true;
  setup.backend = cpu;
  const PoolOutputs expected = unmoved({}, {{1, 330, 20}});
  const PoolOutputs outputs =
      run_pool(setup, [&](PoolLeader& leader) {
        const SequenceId id = leader.admit({1, 330, 20}).value();
        const LeafMove move{id, 1, 3, other_worker(leader, id)};
        EXPECT_EQ(code_of([&] { leader.sequencer.moves().begin(move); }),
                  ErrorCode::kFailedPrecondition);
        EXPECT_TRUE(leader.lead().status.ok());
        leader.push(id);
        leader.sequencer.sequences().prompt_arrived(id);
        leader.sequencer.moves().begin(move);
        for (int step = 0; step < 5; ++step) {
          (void)leader.sequencer.moves().order_copies(2);
          (void)leader.step({{id, 1}});
        }
        EXPECT_EQ(leader.sequencer.moves().totals().completed, 1U);
        leader.sequencer.moves().begin({id, 4, 5, other_worker(leader, id)});
        leader.sequencer.sequences().close(id);  // in the middle of a move
        leader.sequencer.sequences().release_closed(leader.lead().drained_round);
        expect_all_free(leader.sequencer);
      }).outputs;
  EXPECT_EQ(outputs.size(), 10U);
  EXPECT_EQ(wrong(outputs, expected), 0U);
}

}  // namespace
}  // namespace tributary
