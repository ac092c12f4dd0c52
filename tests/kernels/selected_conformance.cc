// Attention to selected rows: a leaf's state is that of a leaf which holds the selected rows alone,
// bit for bit, and near float64.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

using Positions = std::vector<std::int32_t>;

constexpr std::int32_t kRows = 1300;
constexpr std::int32_t kBegin = 4096;  // of the leaf

std::vector<LatentShape> shapes() {
  // Few heads, as many as a unit takes, rows of which no vector is a divisor, fp32.
  LatentShape wide{96, 20, 5};
  wide.row_format = RowFormat::kF32;
  wide.query_dtype = DType::kF32;
  return {{512, 64, 16}, {96, 20, 5}, {32, 16, 128}, wide};
}

Positions every(std::int32_t step, std::int32_t first = 0, std::int32_t end = kRows) {
  Positions positions;
  for (std::int32_t row = first; row < end; row += step) positions.push_back(kBegin + row);
  return positions;
}

Positions random_rows(Normal& normal, std::size_t count) {
  Positions positions = every(1);
  std::shuffle(positions.begin(), positions.end(), normal.random());
  positions.resize(count);
  std::ranges::sort(positions);
  return positions;
}

/// All, none, one, the newest, one a page, and random ones at the borders of blocks.
std::vector<std::pair<std::string, Positions>> selections(Normal& normal) {
  std::vector<std::pair<std::string, Positions>> all{{"all", every(1)},
                                                     {"none", {}},
                                                     {"the first", {kBegin}},
                                                     {"the last", {kBegin + kRows - 1}},
                                                     {"the newest", every(1, kRows - 200)},
                                                     {"one a page", every(kPageTokens, 17)}};
  for (const std::size_t count : {63U, 64U, 65U, 127U, 129U, 256U, 257U, 513U, 777U}) {
    all.emplace_back(std::to_string(count) + " at random", random_rows(normal, count));
  }
  return all;
}

std::vector<float> rows_of(const std::vector<float>& rows, const Positions& positions,
                           std::size_t width) {
  std::vector<float> selected;
  for (const std::int32_t position : positions) {
    const auto first = rows.begin() + static_cast<std::ptrdiff_t>(
                                          static_cast<std::size_t>(position - kBegin) * width);
    selected.insert(selected.end(), first, first + static_cast<std::ptrdiff_t>(width));
  }
  return selected;
}

/// The rows, but infinities in place of those that are not selected.
std::vector<float> poisoned(const std::vector<float>& rows, const Positions& positions,
                            std::size_t width) {
  std::vector<float> bad(rows.size(), std::numeric_limits<float>::infinity());
  for (const std::int32_t position : positions) {
    const auto at =
        static_cast<std::ptrdiff_t>(static_cast<std::size_t>(position - kBegin) * width);
    std::copy_n(rows.begin() + at, width, bad.begin() + at);
  }
  return bad;
}

TEST_P(BackendConformance, SelectedRowsGiveTheBitsOfALeafOfThemAlone) {
  for (const LatentShape& shape : shapes()) {
    Normal normal(71);
    const auto width = static_cast<std::size_t>(shape.latent_dim());
    const std::vector<float> rows = normal.floats(kRows * width);
    const std::vector<float> queries = normal.floats(static_cast<std::size_t>(shape.heads) * width);
    const std::vector<double> exact_queries = rounded(queries, shape.query_dtype);
    for (const auto& [name, positions] : selections(normal)) {
      LatentCase latents(backend(), shape, 64, 72);
      const Leaf leaf = latents.add_leaf(poisoned(rows, positions, width));
      const LeafTask task{.tokens = 1,
                          .rows = kRows,
                          .first_page = leaf.first_page,
                          .leaf_begin = kBegin,
                          .query_position = kBegin + kRows};
      latents.select({positions});
      const std::vector<float> states = latents.attend({task}, queries, 1);
      latents.select({});
      const auto count = static_cast<std::int32_t>(positions.size());
      Leaf alone;
      if (count > 0) {
        alone = latents.add_leaf(rows_of(rows, positions, width));
        const LeafTask compact{
            .tokens = 1, .rows = count, .first_page = alone.first_page, .query_position = count};
        EXPECT_EQ(latents.attend({compact}, queries, 1), states) << shape.text() << ", " << name;
      }
      for (int head = 0; head < shape.heads; head += 3) {
        expect_state(shape, states, 0, head, latents.exact(alone, exact_queries, 0, head, count),
                     count, GetParam().arithmetic);
      }
    }
  }
}

TEST_P(BackendConformance, EachTokenAndLeafHasItsPartOfTheSelection) {
  // Three tokens with lists of their own over two leaves; positions of neither, and of rows that a
  // token does not see, do not count.
  const LatentShape shape{128, 32, 20};
  constexpr std::int32_t kLeaf = 256;
  constexpr std::int32_t kLast = kLeaf + 140;
  Normal normal(73);
  const auto width = static_cast<std::size_t>(shape.latent_dim());
  const std::vector<float> rows = normal.floats((kLast + 1) * width);
  const std::vector<float> queries =
      normal.floats(3 * static_cast<std::size_t>(shape.heads) * width);
  LatentCase latents(backend(), shape, 32, 74);
  const auto part = [&](std::int32_t begin, std::int32_t end) {
    return std::vector<float>(
        rows.begin() + static_cast<std::ptrdiff_t>(begin) * shape.latent_dim(),
        rows.begin() + static_cast<std::ptrdiff_t>(end) * shape.latent_dim());
  };
  const Leaf left = latents.add_leaf(part(0, kLeaf));
  const Leaf right = latents.add_leaf(part(kLeaf, kLast + 1));
  const std::vector<LeafTask> tasks{
      {.tokens = 3, .rows = kLeaf, .first_page = left.first_page, .query_position = kLast - 2},
      {.tokens = 3,
       .rows = kLast + 1 - kLeaf,
       .first_page = right.first_page,
       .leaf_begin = kLeaf,
       .query_position = kLast - 2,
       .state = 3}};
  Positions all(kLast + 1);
  std::iota(all.begin(), all.end(), 0);
  const std::vector<Positions> lists{{0, 5, 255, 256, 300, kLast - 1, kLast}, all, {1000, 2000}};
  latents.select(lists);
  const std::vector<float> states = latents.attend(tasks, queries, 6);
  latents.select({});
  const std::size_t record = shape.state().record_floats();
  const auto at = [&](const std::vector<float>& records, std::size_t index) {
    const auto first = records.begin() + static_cast<std::ptrdiff_t>(index * record);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(record));
  };
  const std::vector<float> dense = latents.attend(tasks, queries, 6);
  EXPECT_EQ(at(states, 1), at(dense, 1));
  EXPECT_EQ(at(states, 4), at(dense, 4));
  std::vector<float> empty(record);
  std::fill(empty.end() - shape.heads, empty.end(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(at(states, 2), empty);
  EXPECT_EQ(at(states, 5), empty);
  const auto alone = [&](const Positions& positions) {
    std::vector<float> selected;
    for (const std::int32_t position : positions) {
      const std::vector<float> row = part(position, position + 1);
      selected.insert(selected.end(), row.begin(), row.end());
    }
    const Leaf leaf = latents.add_leaf(selected);
    const LeafTask task{
        .tokens = 1, .rows = leaf.rows, .first_page = leaf.first_page, .query_position = leaf.rows};
    return latents.attend({task}, queries, 1);
  };
  EXPECT_EQ(at(states, 0), alone({0, 5, 255}));
  EXPECT_EQ(at(states, 3), alone({256, 300}));
}

TEST_P(BackendConformance, MergesAndRecordingsTakeTheListsThatAreThere) {
  for (const LatentShape& shape : {LatentShape{96, 20, 5}, LatentShape{512, 64, 16}}) {
    constexpr std::int32_t kStep = 100;  // from leaf to leaf
    Normal normal(77);
    LatentCase latents(backend(), shape, 16, 78);
    std::vector<LeafTask> tasks;
    for (std::int32_t leaf = 0; leaf < 5; ++leaf) {
      const std::int32_t rows = 90 - leaf;
      tasks.push_back(
          {.tokens = 2,
           .rows = rows,
           .first_page =
               latents.add_leaf(normal.floats(static_cast<std::size_t>(rows * shape.latent_dim())))
                   .first_page,
           .leaf_begin = leaf * kStep,
           .query_position = 4 * kStep + 50,
           .state = 2 * leaf});
    }
    // The canonical tree of five leaves, into records 10 and 11.
    const std::vector<MergeOp> ops{
        {0, 0, 2, 2, 0}, {4, 4, 6, 2, 0}, {0, 0, 4, 2, 1}, {10, 0, 8, 2, 2}};
    const auto query_bytes =
        to_bytes(normal.floats(static_cast<std::size_t>(2 * shape.heads * shape.latent_dim())),
                 shape.query_dtype);
    const auto query_memory = device(query_bytes);
    const auto states = device(std::vector<float>(12 * shape.state().record_floats()));
    // Two lists of four: the second token attends to other leaves, and to one row more.
    const auto lists = device(Positions{3, 80, 204, -1, 150, 207, 300, 451});
    const std::vector<std::int32_t> item_layer{0};
    const AttendArgs attend{.cache = &latents.cache(),
                            .tasks = tasks,
                            .block_table = latents.block_table(),
                            .item_layer = item_layer,
                            .queries = query_memory->data(),
                            .query_stride_bytes = query_bytes.size() / 2,
                            .query_dtype = shape.query_dtype,
                            .heads = shape.heads,
                            .softmax_scale = latents.softmax_scale(),
                            .states = states->as<float>(),
                            .selected = {.data = lists->as<std::int32_t>(),
                                         .stride_bytes = 4 * sizeof(std::int32_t),
                                         .most = 4}};
    const MergeArgs merge{
        .ops = ops, .shape = shape.state(), .states = states->as<float>(), .levels = 3};
    // The merged states, computed by `run`.
    const auto result = [&](const auto& run) {
      run();
      const std::vector<float> all = host<float>(*states);
      const std::vector<float> zeros(all.size());
      backend().upload(states->data(), std::as_bytes(std::span(zeros)));
      return std::vector<float>(all.end() - static_cast<std::ptrdiff_t>(all.size() / 6), all.end());
    };
    const auto apart = [&] {
      backend().call(attend);
      backend().call(merge);
    };
    const std::vector<float> first = result(apart);
    EXPECT_EQ(result([&] { backend().call(AttendMergeArgs{attend, merge}); }), first);
    const std::vector<Call> calls{AttendMergeArgs{attend, merge}};
    const auto recording = backend().record(calls);
    if (recording != nullptr) {
      EXPECT_EQ(result([&] { backend().replay(*recording); }), first);
    }
    // Other lists at the same place.
    const Positions others{5, 100, 101, 102, 0, 1, 2, 402};
    backend().upload(lists->data(), std::as_bytes(std::span(others)));
    const std::vector<float> second = result(apart);
    EXPECT_NE(second, first);
    if (recording == nullptr) continue;
    EXPECT_EQ(result([&] { backend().replay(*recording); }), second);
    for (LeafTask& task : tasks) ++task.query_position;
    ASSERT_TRUE(backend().refill(*recording, calls));
    EXPECT_EQ(result([&] { backend().replay(*recording); }), second);
  }
}

TEST_P(BackendConformance, BadListsOfRowsAreRefused) {
  const LatentShape shape{8, 2, 2};
  LatentCase latents(backend(), shape, 2, 75);
  const Leaf leaf = latents.add_leaf(std::vector<float>(10, 1.0F));
  const std::vector<LeafTask> tasks{{.tokens = 1, .rows = 1, .first_page = leaf.first_page}};
  const std::vector<std::int32_t> layer{0};
  const auto memory = device(std::vector<std::int32_t>(1024, -1));
  const auto attend = [&](const SelectedRows& selected, std::int64_t leaf_begin = 0) {
    std::vector<LeafTask> moved = tasks;
    moved[0].leaf_begin = leaf_begin;
    return code_of([&] {
      backend().call(AttendArgs{.cache = &latents.cache(),
                                .tasks = moved,
                                .block_table = latents.block_table(),
                                .item_layer = layer,
                                .queries = memory->data(),
                                .query_stride_bytes = 40,
                                .query_dtype = DType::kBF16,
                                .heads = 2,
                                .softmax_scale = 1,
                                .states = memory->as<float>() + 256,
                                .selected = selected});
    });
  };
  const auto* data = memory->as<std::int32_t>() + 512;
  const SelectedRows good{.data = data, .stride_bytes = 16, .most = 4};
  SelectedRows bad = good;
  bad.data = nullptr;
  EXPECT_EQ(attend(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.most = -1;
  EXPECT_EQ(attend(bad), ErrorCode::kInvalidArgument);
  bad = good;
  bad.stride_bytes = 12;
  EXPECT_EQ(attend(bad), ErrorCode::kInvalidArgument);
  bad.stride_bytes = 18;
  EXPECT_EQ(attend(bad), ErrorCode::kInvalidArgument);
  EXPECT_EQ(attend(good, std::int64_t{1} << 32), ErrorCode::kInvalidArgument);
  EXPECT_EQ(attend(good), ErrorCode::kOk);
}

}  // namespace
}  // namespace tributary::test
