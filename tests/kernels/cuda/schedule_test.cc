// The schedules of attention on a GPU, and the choice of kernel: both are decided without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/interface/visible_rows.h"
#include "core/plan/merge_tree.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/fast_order.h"
#include "kernels/cuda/attend/fused_order.h"
#include "kernels/cuda/attend/token_tasks.h"

namespace tributary::cuda {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr DeviceLimits kH200{
    .compute_capability = 90, .multiprocessors = 132, .shared_bytes = 227 * kKiB};
constexpr DeviceLimits kA100{
    .compute_capability = 80, .multiprocessors = 108, .shared_bytes = 163 * kKiB};
constexpr DeviceLimits kL40{
    .compute_capability = 89, .multiprocessors = 142, .shared_bytes = 99 * kKiB};

LeafTask task(int rows, int tokens = 1) {
  return {.tokens = tokens, .rows = rows, .query_position = rows};
}

std::int64_t cost(const LeafTask& task) {
  return (task.rows + 63) / 64 + 5;
}

std::vector<std::int64_t> loads(const AttendSchedule& schedule,
                                const std::vector<LeafTask>& tasks) {
  std::vector<std::int64_t> result;
  for (std::size_t p = 0; p + 1 < schedule.part_begin.size(); ++p) {
    std::int64_t load = 0;
    for (std::int32_t u = schedule.part_begin[p]; u < schedule.part_begin[p + 1]; ++u) {
      load +=
          cost(tasks[static_cast<std::size_t>(schedule.units[static_cast<std::size_t>(u)].task)]);
    }
    result.push_back(load);
  }
  return result;
}

TEST(CanonicalSchedule, TakesEveryRowOnce) {
  std::vector<LeafTask> tasks;
  for (int i = 0; i < 50; ++i) tasks.push_back(task(1 + i * 37 % 2048, 1 + i % 16));
  const int heads = 20;
  const AttendSchedule schedule = schedule_attend(tasks, heads, 64, 13);
  ASSERT_EQ(schedule.part_begin.size(), 14U);
  EXPECT_EQ(schedule.part_begin.front(), 0);
  EXPECT_TRUE(std::ranges::is_sorted(schedule.part_begin));
  EXPECT_EQ(static_cast<std::size_t>(schedule.part_begin.back()), schedule.units.size());
  std::set<std::pair<int, int>> units;
  for (const WorkUnit& unit : schedule.units) {
    EXPECT_TRUE(units.emplace(unit.task, unit.first_row).second);
  }
  std::size_t expected = 0;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    for (int row = 0; row < tasks[t].tokens * heads; row += 64, ++expected) {
      EXPECT_TRUE(units.contains({static_cast<int>(t), row})) << t << ", " << row;
    }
  }
  EXPECT_EQ(units.size(), expected);
}

TEST(CanonicalSchedule, BalancesByCost) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> rows(1, 2048);
  for (const int parts : {1, 7, 132}) {
    std::vector<LeafTask> tasks;
    std::int64_t total = 0;
    std::int64_t largest = 0;
    for (int i = 0; i < 400; ++i) {
      tasks.push_back(task(rows(random)));
      total += cost(tasks.back());
      largest = std::max(largest, cost(tasks.back()));
    }
    const std::vector<std::int64_t> load = loads(schedule_attend(tasks, 16, 16, parts), tasks);
    // No order can end before both of these; longest-first ends within 4/3 of the best.
    const std::int64_t bound = std::max(largest, (total + parts - 1) / parts);
    EXPECT_LE(*std::ranges::max_element(load) * 3, bound * 4) << parts << " parts";
    EXPECT_EQ(loads(schedule_attend(tasks, 16, 16, 1), tasks).front(), total);
  }
}

TEST(CanonicalSchedule, CountsWhatIsSeen) {
  // A leaf far ahead of its query costs as little as one without rows: with two parts, the long
  // leaf that is seen has a part to itself.
  LeafTask unseen = task(2048);
  unseen.leaf_begin = 1 << 20;
  const AttendSchedule schedule =
      schedule_attend(std::vector{unseen, task(2048), unseen, unseen}, 16, 16, 2);
  EXPECT_EQ(schedule.part_begin, (std::vector<std::int32_t>{0, 1, 4}));
  EXPECT_EQ(schedule.units.front(), (WorkUnit{1, 0}));
}

TEST(CanonicalSchedule, OfNothingIsEmptyParts) {
  const AttendSchedule schedule = schedule_attend({}, 16, 16, 3);
  EXPECT_EQ(schedule.part_begin, (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_THROW((void)schedule_attend({}, 16, 16, 0), Error);
  EXPECT_THROW((void)schedule_attend({}, 0, 16, 1), Error);
}

// FlashMLA's published example.
TEST(FastSchedule, OfThePublishedCaseIsThePublishedOne) {
  const FastSchedule schedule = fast_schedule(std::vector<std::int32_t>(128, 4096), 144);
  EXPECT_EQ(schedule.total, 8832);
  EXPECT_EQ(schedule.payload, 67);
  ASSERT_EQ(schedule.parts.size(), 144U);
  EXPECT_EQ(schedule.parts[0], (FastPart{0, 0, 0, 3968}));
  EXPECT_EQ(schedule.parts[1], (FastPart{0, 3968, 1, 3520}));
  EXPECT_EQ(schedule.parts[2], (FastPart{1, 3520, 2, 3072}));
  EXPECT_EQ(schedule.first_split.back(), 256);
  EXPECT_TRUE(std::ranges::is_sorted(schedule.first_split));
}

TEST(FastSchedule, TakesEveryTokenOnceWithinThePayload) {
  std::mt19937 random(6);
  std::uniform_int_distribution<std::int32_t> length(0, 9000);
  for (const int parts : {1, 3, 144}) {
    std::vector<std::int32_t> lengths(60);
    for (std::int32_t& l : lengths) l = length(random);
    lengths.back() = 0;
    const FastSchedule schedule = fast_schedule(lengths, parts);
    std::int32_t request = 0;
    std::int32_t token = 0;
    std::vector<std::int32_t> pieces(lengths.size());
    for (const FastPart& part : schedule.parts) {
      if (part.begin_request == static_cast<std::int32_t>(lengths.size())) continue;
      EXPECT_EQ(part.begin_request, request);
      EXPECT_EQ(part.begin_token, token);
      std::int64_t spent = 0;
      for (std::int32_t r = part.begin_request; r <= part.end_request; ++r) {
        const std::int32_t begin = r == part.begin_request ? part.begin_token : 0;
        const std::int32_t end =
            r == part.end_request ? part.end_token : lengths[static_cast<std::size_t>(r)];
        spent += (end - begin + 63) / 64 + 5;
        ++pieces[static_cast<std::size_t>(r)];
      }
      EXPECT_LE(spent, schedule.payload);
      const bool ended = part.end_token == lengths[static_cast<std::size_t>(part.end_request)];
      request = ended ? part.end_request + 1 : part.end_request;
      token = ended ? 0 : part.end_token;
    }
    EXPECT_EQ(request, static_cast<std::int32_t>(lengths.size()));
    for (std::size_t r = 0; r < lengths.size(); ++r) {
      EXPECT_EQ(schedule.first_split[r + 1] - schedule.first_split[r], pieces[r]) << r;
    }
  }
  EXPECT_THROW((void)fast_schedule(std::vector<std::int32_t>{-1}, 1), Error);
}

TEST(FastOrder, PiecesAreTheTasks) {
  // 20 heads and 4 tokens are two units of 64 rows.
  const std::vector<LeafTask> tasks{task(4000, 4), task(65), task(1, 2), task(129, 4)};
  for (const int parts : {1, 3, 8, 60}) {
    const FastOrder order = fast_order(tasks, 20, 64, parts);
    ASSERT_EQ(order.schedule.part_begin.size(), static_cast<std::size_t>(parts) + 1);
    std::vector<std::int64_t> rows(tasks.size());
    std::set<std::int64_t> unmerged;  // records of pieces
    for (const LeafTask& piece : order.tasks) {
      // Pieces of a task follow each other. Their position and number of tokens identify the task.
      const auto whole = std::ranges::find_if(tasks, [&](const LeafTask& candidate) {
        return candidate.query_position == piece.query_position && candidate.tokens == piece.tokens;
      });
      ASSERT_NE(whole, tasks.end());
      std::int64_t& done = rows[static_cast<std::size_t>(whole - tasks.begin())];
      EXPECT_EQ(piece.leaf_begin - whole->leaf_begin, done);
      EXPECT_EQ((piece.first_page - whole->first_page) * kPageTokens, done);
      done += piece.rows;
      if (piece.state >= kScratchRecord) unmerged.insert(piece.state);
    }
    for (std::size_t t = 0; t < tasks.size(); ++t) EXPECT_EQ(rows[t], tasks[t].rows) << t;
    std::set<std::pair<int, int>> units;
    for (const WorkUnit& unit : order.schedule.units) units.emplace(unit.task, unit.first_row);
    std::size_t expected = 0;
    for (const LeafTask& piece : order.tasks) {
      expected += static_cast<std::size_t>(piece.tokens * 20 + 63) / 64;
    }
    EXPECT_EQ(units.size(), expected);
    EXPECT_EQ(order.schedule.units.size(), expected);
    // Every piece is merged away, and in the end the left one into its task's own state.
    int level = 0;
    for (const MergeOp& op : order.merges) {
      EXPECT_GE(op.level, level);
      level = op.level;
      EXPECT_EQ(unmerged.erase(op.right), 1U);
      if (op.dst < kScratchRecord) {
        EXPECT_EQ(unmerged.erase(op.left), 1U);
      }
    }
    EXPECT_EQ(order.merge_levels, order.merges.empty() ? 0 : level + 1);
    EXPECT_TRUE(unmerged.empty()) << parts << " parts";
  }
}

/// Sequences of so many leaves of 2048 tokens, and the merges of each in the canonical tree.
struct Sequences {
  explicit Sequences(const std::vector<int>& leaves) {
    MergeSchedule schedule;
    std::vector<NodeState> nodes;
    for (const int count : leaves) {
      nodes.clear();
      for (std::int32_t leaf = 0; leaf < count; ++leaf) {
        const auto state = static_cast<std::int64_t>(tasks.size());
        tasks.push_back(task(2048));
        tasks.back().state = state;
        nodes.push_back({{0, leaf}, state});
      }
      schedule.add(nodes, tree_height(count), nodes.front().state, 1);
    }
    for (const auto& level : schedule.levels()) ops.insert(ops.end(), level.begin(), level.end());
    levels = static_cast<int>(schedule.levels().size());
  }
  [[nodiscard]] AttendArgs attend(int heads) const { return {.tasks = tasks, .heads = heads}; }
  [[nodiscard]] MergeArgs merge(int heads) const {
    return {.ops = ops, .shape = {heads, 512}, .levels = levels};
  }

  std::vector<LeafTask> tasks;
  std::vector<MergeOp> ops;
  int levels = 1;
};

TEST(FusedOrder, KeepsTheLeavesOfATreeInOnePart) {
  const Sequences sequences({1, 2, 5, 8, 23});
  for (int level = 0; level <= kMergeLevels; ++level) {
    const FusedOrder order =
        fused_order_below(level, sequences.attend(40), sequences.merge(40), 16, 7);
    std::vector<int> runs(sequences.tasks.size());
    std::set<std::pair<int, int>> done;  // in this part: record, first row
    for (std::size_t p = 0; p < 7; ++p) {
      done.clear();
      for (auto u = order.schedule.part_begin[p]; u < order.schedule.part_begin[p + 1]; ++u) {
        const WorkUnit& unit = order.schedule.units[static_cast<std::size_t>(u)];
        const auto index = static_cast<std::size_t>(unit.task);
        ++runs[index];
        done.emplace(static_cast<int>(sequences.tasks[index].state), unit.first_row);
        if (order.task_trees[index] < 0) continue;
        const MergeTree& tree = order.trees[static_cast<std::size_t>(order.task_trees[index])];
        for (const std::int64_t input :
             std::span(tree.inputs).first(static_cast<std::size_t>(tree.slots))) {
          if (input == kNoState) continue;
          EXPECT_TRUE(done.contains({static_cast<int>(input), unit.first_row})) << input;
        }
      }
    }
    EXPECT_THAT(runs, testing::Each(3)) << "40 rows in units of 16";
    // Every leaf but the first of its sequence is the right side of one merge.
    std::size_t inputs = 0;
    const auto count = [&](const std::vector<MergeTree>& trees) {
      for (const MergeTree& tree : trees) {
        inputs += 7 - static_cast<std::size_t>(std::ranges::count(tree.inputs, kNoState));
      }
    };
    count(order.trees);
    for (const auto& launch : order.rest) count(launch);
    EXPECT_EQ(inputs, sequences.tasks.size() - 5);
    EXPECT_EQ(order.trees.empty(), level == 0);
    EXPECT_EQ(order.rest.size(), level == 0 ? 2U : 1U + (level < 3 ? 1U : 0U));
  }
}

TEST(FusedOrder, TakesTheLevelsThatPay) {
  // 128 sequences of two leaves on 66 clusters: two pairs each, without a launch.
  const Sequences pairs(std::vector<int>(128, 2));
  FusedOrder order = fused_order(pairs.attend(128), pairs.merge(128), 128, 66);
  EXPECT_EQ(order.trees.size(), 128U);
  EXPECT_TRUE(order.rest.empty());
  EXPECT_EQ(order.schedule.busiest, 4 * (32 + 5));
  // One sequence of 64 leaves: all parts have work, and the kernel merges.
  const Sequences one({64});
  order = fused_order(one.attend(128), one.merge(128), 128, 66);
  EXPECT_TRUE(order.trees.empty());
  EXPECT_EQ(order.rest.size(), 2U);
  EXPECT_EQ(order.schedule.busiest, 32 + 5);
}

TEST(TokenTasks, AreOfOneTokenAndExpectTheirShareOfTheSelection) {
  // The second leaf of a sequence of 4098 tokens, of which the first token sees a row less.
  const std::vector<LeafTask> tasks{{.item = 3,
                                     .tokens = 2,
                                     .rows = 2050,
                                     .first_page = 32,
                                     .leaf_begin = 2048,
                                     .query_position = 4096,
                                     .query = 5,
                                     .state = 8},
                                    {.tokens = 1, .rows = 100, .query_position = 99, .state = 2}};
  const std::vector<MergeOp> merges{{8, 8, 4, 2, 0}, {2, 2, kNoState, 1, 1}};
  const AttendArgs args{.tasks = tasks, .selected = {.stride_bytes = 2048, .most = 512}};
  TokenTasks tokens;
  for (int layer = 0; layer < 2; ++layer) split_into_tokens(args, merges, tokens);
  ASSERT_EQ(tokens.tasks.size(), 3U);
  LeafTask second = tasks[0];
  second.tokens = 1;
  EXPECT_EQ(tokens.tasks[0].query_position, 4096);
  EXPECT_EQ(tokens.tasks[0].tokens, 1);
  second.query_position = 4097;
  second.query = 6;
  second.state = 9;
  EXPECT_EQ(tokens.tasks[1], second);
  EXPECT_EQ(tokens.tasks[2], tasks[1]);
  // Half of the rows, and half of 512; all of a shorter sequence.
  std::vector<std::int32_t> expected;
  for (const LeafTask& of : tokens.expected) expected.push_back(visible_rows(of, 0));
  EXPECT_EQ(expected, (std::vector<std::int32_t>{257, 257, 100}));
  EXPECT_EQ(tokens.merges,
            (std::vector<MergeOp>{{8, 8, 4, 1, 0}, {9, 9, 5, 1, 0}, {2, 2, kNoState, 1, 1}}));
}

TEST(Choice, IsByHeadsAndShapeAlone) {
  const CacheLayout deepseek{.layers = 1, .pages = 1, .kv_lora_rank = 512, .qk_rope_head_dim = 64};
  for (const int heads : {1, 15, 16}) {
    EXPECT_EQ(choose_kernel(heads, deepseek, DType::kBF16, 90), AttendKernel::kFewRows);
  }
  for (const int heads : {17, 64, 128}) {
    EXPECT_EQ(choose_kernel(heads, deepseek, DType::kBF16, 90), AttendKernel::kManyRows);
    EXPECT_EQ(choose_kernel(heads, deepseek, DType::kBF16, 80), AttendKernel::kFewRows);
    EXPECT_EQ(choose_kernel(heads, deepseek, DType::kBF16, 100), AttendKernel::kFewRows);
  }
  EXPECT_EQ(choose_kernel(128, deepseek, DType::kF32, 90), AttendKernel::kGeneric);
  EXPECT_EQ(choose_kernel(128, deepseek, DType::kBF16, 75), AttendKernel::kGeneric);
  CacheLayout other = deepseek;
  other.row_format = RowFormat::kF32;
  EXPECT_EQ(choose_kernel(16, other, DType::kBF16, 90), AttendKernel::kGeneric);
  other = deepseek;
  other.kv_lora_rank = 256;
  EXPECT_EQ(choose_kernel(16, other, DType::kBF16, 90), AttendKernel::kGeneric);
}

TEST(Choice, AForcedKernelIsTakenWhereItCanRun) {
  const CacheLayout deepseek{.layers = 1, .pages = 1, .kv_lora_rank = 512, .qk_rope_head_dim = 64};
  const auto forced = [&](AttendChoice choice, int capability, DType queries = DType::kBF16) {
    return choose_kernel(128, deepseek, queries, capability, choice);
  };
  EXPECT_EQ(forced(AttendChoice::kGeneric, 90), AttendKernel::kGeneric);
  EXPECT_EQ(forced(AttendChoice::kFew, 90), AttendKernel::kFewRows);
  EXPECT_EQ(choose_kernel(1, deepseek, DType::kBF16, 90, AttendChoice::kMany1),
            AttendKernel::kManyRows);
  EXPECT_THROW((void)forced(AttendChoice::kMany2, 80), Error);
  EXPECT_THROW((void)forced(AttendChoice::kFew, 75), Error);
  EXPECT_THROW((void)forced(AttendChoice::kFew, 90, DType::kF32), Error);

  const std::vector<LeafTask> tasks{task(100, 2)};
  const auto rows_of = [&](AttendChoice choice, int heads) {
    AttendArgs args;
    args.tasks = tasks;
    args.heads = heads;
    const AttendLaunch launch = describe_attend(args, deepseek, kH200, choice);
    return std::pair(launch.unit_rows, launch.parts);
  };
  EXPECT_EQ(rows_of(AttendChoice::kMany1, 128), std::pair(64, 132));
  EXPECT_EQ(rows_of(AttendChoice::kMany2, 16), std::pair(128, 66));
  EXPECT_EQ(rows_of(AttendChoice::kFew, 128), std::pair(64, 132));
}

TEST(Choice, CutsUnitsAsSharedMemoryAllows) {
  EXPECT_EQ(unit_rows(AttendKernel::kFewRows, 9, 1, kH200), 16);
  EXPECT_EQ(unit_rows(AttendKernel::kFewRows, 16, 2, kH200), 32);
  EXPECT_EQ(unit_rows(AttendKernel::kFewRows, 16, 3, kH200), 64);
  EXPECT_EQ(unit_rows(AttendKernel::kFewRows, 128, 4, kA100), 64);
  EXPECT_EQ(unit_rows(AttendKernel::kFewRows, 128, 1, kL40), 16);
  EXPECT_EQ(unit_rows(AttendKernel::kManyRows, 64, 1, kH200), 64);
  EXPECT_EQ(unit_rows(AttendKernel::kManyRows, 128, 1, kH200), 128);
  EXPECT_THROW((void)unit_rows(AttendKernel::kFewRows, 16, 17, kH200), Error);
  EXPECT_THROW((void)unit_rows(AttendKernel::kFewRows, 16, 1, {.shared_bytes = 48 * kKiB}), Error);
  EXPECT_EQ(attend_parts(AttendKernel::kFewRows, 16, kH200), 132);
  EXPECT_EQ(attend_parts(AttendKernel::kManyRows, 128, kH200), 66);
}

TEST(Choice, TwoBlocksOfFewRowsShareAMultiprocessorThatHasWorkForThem) {
  const CacheLayout deepseek{.layers = 1, .pages = 1, .kv_lora_rank = 512, .qk_rope_head_dim = 64};
  const auto launch_of = [&](int tasks, int heads, const DeviceLimits& device, bool fast = false) {
    const std::vector<LeafTask> all(static_cast<std::size_t>(tasks), task(100, 1));
    AttendArgs args;
    args.tasks = all;
    args.heads = heads;
    const AttendLaunch launch = describe_attend(args, deepseek, device, AttendChoice::kFew, fast);
    return std::tuple(launch.blocks, launch.parts, launch.stages);
  };
  EXPECT_EQ(launch_of(132, 16, kH200), std::tuple(1, 132, 5));
  EXPECT_EQ(launch_of(133, 16, kH200), std::tuple(2, 264, 2));
  EXPECT_EQ(launch_of(1, 16, kH200, true), std::tuple(2, 264, 2));
  EXPECT_EQ(launch_of(133, 17, kH200), std::tuple(1, 132, 5));
  EXPECT_EQ(launch_of(500, 16, kA100), std::tuple(1, 108, 3));
}

}  // namespace
}  // namespace tributary::cuda
