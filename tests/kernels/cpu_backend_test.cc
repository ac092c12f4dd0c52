// The CPU backend joins the suite once per instruction set of the machine, and once with threads;
// then tests of its own: names, options, bits across thread counts.
#include "kernels/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "kernels/cpu/amx_attend.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/cpu/emulated_table.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

Arithmetic arithmetic_of(std::string_view instruction_set) {
  return instruction_set.find("_BF16") != std::string_view::npos ? Arithmetic::kBf16Weights
                                                                 : Arithmetic::kFloat32;
}

std::vector<BackendUnderTest> every_instruction_set() {
  std::vector<BackendUnderTest> all;
  for (const std::string_view name : cpu_instruction_sets()) {
    all.push_back({.name = std::string(name),
                   .make =
                       [name] {
                         return make_cpu_backend(
                             {.threads = 1, .instruction_set = std::string(name)});
                       },
                   .arithmetic = arithmetic_of(name)});
  }
  // Where tiles are missing, their kernel on emulated ones, with threads as well.
  for (const int threads : {1, 3}) {
    const cpu::KernelTable* emulated = cpu::emulated_amx_table();
    if (emulated == nullptr) break;
    all.push_back(
        {.name = threads == 1 ? "EmulatedTiles" : "EmulatedTilesThreeThreads",
         .make = [emulated, threads] { return cpu::make_table_backend(*emulated, threads); },
         .arithmetic = Arithmetic::kBf16Weights});
  }
  all.push_back({.name = "ThreeThreads",
                 .make = [] { return make_cpu_backend({.threads = 3, .instruction_set = ""}); },
                 .arithmetic = arithmetic_of(cpu_instruction_sets().front())});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance, testing::ValuesIn(every_instruction_set()),
                         name_of);

TEST(CpuBackend, NameIsTheInstructionSetAndTheDefaultIsTheBest) {
  const auto names = cpu_instruction_sets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(make_cpu_backend({})->name(), "cpu/" + std::string(names.front()));
  for (const std::string_view name : names) {
    EXPECT_EQ(make_cpu_backend({.threads = 1, .instruction_set = std::string(name)})->name(),
              "cpu/" + std::string(name));
  }
}

TEST(CpuBackend, AnUnknownInstructionSetIsAnErrorThatListsThose) {
  try {
    (void)make_cpu_backend({.threads = 1, .instruction_set = "AVX9"});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string message = error.what();
    EXPECT_NE(message.find("AVX9"), std::string::npos) << message;
    for (const std::string_view name : cpu_instruction_sets()) {
      EXPECT_NE(message.find(name), std::string::npos) << message;
    }
  }
}

TEST(CpuBackend, ThreadsOutOfRangeAreRefused) {
  for (const int threads : {-1, 0, 1025}) {
    EXPECT_THROW((void)make_cpu_backend({.threads = threads, .instruction_set = ""}), Error)
        << threads;
  }
}

// Every operation that is cut into units, on shapes large enough to be cut.
std::vector<std::vector<float>> results(Backend& backend) {
  std::vector<std::vector<float>> all;
  Normal normal(40);
  for (const int heads : {3, 40}) {
    const LatentShape shape{.kv_lora_rank = 72, .qk_rope_head_dim = 8, .heads = heads};
    LatentCase latents(backend, shape, 20, 41);
    std::vector<LeafTask> tasks;
    for (const int rows : {10, 64, 200, 300}) {
      const Leaf leaf = latents.add_leaf(
          normal.floats(static_cast<std::size_t>(rows) * static_cast<std::size_t>(80)));
      tasks.push_back({.tokens = 4,
                       .rows = rows,
                       .first_page = leaf.first_page,
                       .query_position = rows - 3,
                       .state = static_cast<std::int64_t>(tasks.size()) * 4});
    }
    const std::vector<float> queries =
        normal.floats(std::size_t{4} * 80 * static_cast<std::size_t>(heads));
    all.push_back(latents.attend(tasks, queries, 16));
    std::vector<float>& states = all.emplace_back(all.back());
    const std::vector<MergeOp> ops{{.dst = 0, .left = 0, .right = 4, .tokens = 4},
                                   {.dst = 8, .left = 8, .right = 12, .tokens = 4}};
    backend.call(MergeArgs{.ops = ops, .shape = shape.state(), .states = states.data()});
  }
  const std::vector<float> w = normal.floats(std::size_t{700} * 300);
  const auto weight =
      backend.make_weight({.data = w.data(), .rows = 700, .cols = 300, .row_stride = 300});
  const std::vector<float> x = normal.floats(std::size_t{140} * 300);
  std::vector<float>& y = all.emplace_back(std::size_t{140} * 700);
  backend.call(GemmArgs{.weight = weight.get(),
                        .tokens = 140,
                        .x = x.data(),
                        .x_token_stride = 300,
                        .y = y.data(),
                        .y_token_stride = 700});
  const std::vector<float> q = normal.floats(std::size_t{150} * 3 * 24);
  const std::vector<float> kv = normal.floats(std::size_t{150} * 3 * 32);
  const std::vector<float> k_pe = normal.floats(std::size_t{150} * 8);
  std::vector<float>& dense = all.emplace_back(150 * StateShape{3, 16}.record_floats());
  backend.call(DenseAttendArgs{.tokens = 150,
                               .keys = 150,
                               .heads = 3,
                               .qk_nope_head_dim = 16,
                               .qk_rope_head_dim = 8,
                               .v_head_dim = 16,
                               .softmax_scale = 0.2F,
                               .q = q.data(),
                               .kv = kv.data(),
                               .k_pe = k_pe.data(),
                               .states = dense.data()});
  return all;
}

TEST(CpuBackend, BitsDoNotDependOnTheNumberOfThreads) {
  for (const std::string_view name : cpu_instruction_sets()) {
    const auto one =
        results(*make_cpu_backend({.threads = 1, .instruction_set = std::string(name)}));
    for (const int threads : {2, 5}) {
      const auto many =
          results(*make_cpu_backend({.threads = threads, .instruction_set = std::string(name)}));
      ASSERT_EQ(one.size(), many.size());
      for (std::size_t i = 0; i < one.size(); ++i) {
        ASSERT_EQ(one[i].size(), many[i].size());
        EXPECT_EQ(std::memcmp(one[i].data(), many[i].data(), one[i].size() * sizeof(float)), 0)
            << name << ", " << threads << " threads, result " << i;
      }
    }
  }
}

TEST(CpuBackend, BitsOfEmulatedTilesDoNotDependOnTheNumberOfThreads) {
  const cpu::KernelTable* emulated = cpu::emulated_amx_table();
  if (emulated == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  const auto one = results(*cpu::make_table_backend(*emulated, 1));
  EXPECT_EQ(results(*cpu::make_table_backend(*emulated, 3)), one);
}

/// Among calls of up to kFewHeads heads, which add their values in another order, and among others.
TEST(CpuBackend, AHeadsBitsOnTilesDoNotDependOnTheOthers) {
  const cpu::KernelTable* tiles = cpu::emulated_amx_table();
  if (tiles == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  constexpr std::size_t kDim = 576;
  constexpr int kMost = 80;
  const auto backend = cpu::make_table_backend(*tiles, 1);
  const std::vector<float> queries = Normal(62).floats(kMost * kDim);
  // [heads][512], then the lse of each, of heads [first, first + heads).
  const auto states = [&](int first, int heads) {
    const LatentShape shape{.kv_lora_rank = 512, .qk_rope_head_dim = 64, .heads = heads};
    LatentCase latents(*backend, shape, 8, 61);
    const Leaf leaf = latents.add_leaf(Normal(60).floats(std::size_t{300} * kDim));
    const LeafTask task{
        .tokens = 1, .rows = 300, .first_page = leaf.first_page, .query_position = 299};
    const auto of_heads = std::span(queries).subspan(static_cast<std::size_t>(first) * kDim,
                                                     static_cast<std::size_t>(heads) * kDim);
    return latents.attend({task}, {of_heads.begin(), of_heads.end()}, 1);
  };
  struct Call {
    int all, some;  // heads
    std::vector<int> first;
  };
  for (const Call& call : {Call{kMost, 17, {0, 31, 63}}, Call{16, 1, {0, 7, 15}}}) {
    const std::vector<float> all = states(0, call.all);
    for (const int first : call.first) {
      const std::vector<float> some = states(first, call.some);
      ASSERT_EQ(some.size(), static_cast<std::size_t>(call.some) * 513);
      EXPECT_TRUE(std::equal(some.begin(), some.end() - call.some, all.begin() + first * 512))
          << call.all << ", " << first;
      EXPECT_TRUE(
          std::equal(some.end() - call.some, some.end(), all.begin() + call.all * 512 + first))
          << call.all << ", " << first;
    }
  }
}

TEST(CpuBackend, ATableForFewHeadsLeavesOthersToTheFp32Kernels) {
  const cpu::KernelTable* tiles = cpu::emulated_amx_table();
  if (tiles == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  cpu::KernelTable few = *tiles;
  few.pairs_most_heads = cpu::kFewHeads;
  cpu::KernelTable none = *tiles;
  none.pairs = nullptr;
  for (const int heads : {16, 17}) {
    const LatentShape shape{.kv_lora_rank = 64, .qk_rope_head_dim = 8, .heads = heads};
    const auto states = [&](const cpu::KernelTable& table) {
      const auto backend = cpu::make_table_backend(table, 1);
      Normal normal(60);
      LatentCase latents(*backend, shape, 4, 61);
      const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{100} * 72));
      const LeafTask task{
          .tokens = 1, .rows = 100, .first_page = leaf.first_page, .query_position = 99};
      return latents.attend({task}, normal.floats(static_cast<std::size_t>(heads) * 72), 1);
    };
    EXPECT_EQ(states(few) == states(*tiles), heads == 16) << heads;
    EXPECT_EQ(states(few) == states(none), heads == 17) << heads;
  }
}

TEST(CpuBackend, AWeightKeepsItsValuesInWhicheverTypeItIsKept) {
  // fp32 values that bf16 holds give the bits of the bf16 weight; one that it does not hold, in the
  // last place that is packed, is not rounded.
  constexpr std::int64_t kRows = 130;
  constexpr std::int64_t kCols = 70;
  constexpr std::int64_t kTokens = 5;
  Normal normal(50);
  const std::vector<float> x = normal.floats(std::size_t{kTokens} * kCols);
  std::vector<float> values = normal.floats(std::size_t{kRows} * kCols);
  std::vector<bf16> halves;
  for (float& value : values) {
    halves.push_back(to_bf16(value));
    value = to_float(halves.back());
  }
  for (const BackendUnderTest& under_test : every_instruction_set()) {
    const std::string& name = under_test.name;
    const auto backend = under_test.make();
    const auto product = [&](const void* data, DType dtype) {
      const auto weight = backend->make_weight(
          {.data = data, .dtype = dtype, .rows = kRows, .cols = kCols, .row_stride = kCols});
      std::vector<float> y(std::size_t{kTokens} * kRows);
      backend->call(GemmArgs{.weight = weight.get(),
                             .tokens = kTokens,
                             .x = x.data(),
                             .x_token_stride = kCols,
                             .y = y.data(),
                             .y_token_stride = kRows});
      return y;
    };
    const std::vector<float> expected = product(halves.data(), DType::kBF16);
    EXPECT_EQ(product(values.data(), DType::kF32), expected) << name;
    // Tiles multiply bf16 alone: other types take the fp32 kernel, as exact, but of other bits.
    if (backend->name() == fmt::format("cpu/{}", cpu::kAmxTableName)) continue;
    std::vector<float> finer = values;
    finer.back() = std::nextafter(1.0F, 2.0F);
    const std::vector<float> got = product(finer.data(), DType::kF32);
    for (std::size_t t = 0; t < kTokens; ++t) {
      double exact = 0;
      for (std::size_t c = 0; c < kCols; ++c) {
        exact += static_cast<double>(x[t * kCols + c]) * finer[(kRows - 1) * kCols + c];
      }
      const std::size_t last = t * kRows + kRows - 1;
      EXPECT_NEAR(got[last], exact, 1e-5) << name;
      EXPECT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(t * kRows),
                             got.begin() + static_cast<std::ptrdiff_t>(last),
                             expected.begin() + static_cast<std::ptrdiff_t>(t * kRows)))
          << name;
    }
  }
}

TEST(CpuBackend, InstructionSetsWorkSideBySide) {
  // Interleaved calls give what each gives alone: the process has no global choice of kernels.
  const auto names = cpu_instruction_sets();
  const auto best = make_cpu_backend({.threads = 1, .instruction_set = std::string(names.front())});
  const auto last = make_cpu_backend({.threads = 1, .instruction_set = std::string(names.back())});
  const auto expected_last = results(*last);
  const auto expected_best = results(*best);
  EXPECT_EQ(results(*last), expected_last);
  EXPECT_EQ(results(*best), expected_best);
}

// Rows of several KV heads beside each other, gaps between pages: as [page][slot][head][column], of
// which a head is a layer of the cache.
struct HeadsInRows {
  static constexpr int kHeads = 3, kPages = 4, kRank = 64, kRope = 16;
  static constexpr std::size_t kGap = 36;

  HeadsInRows(RowFormat format, Normal& normal)
      : layout{kHeads, kPages, kRank, kRope, format},
        strides{.layer_bytes = layout.row_bytes(),
                .page_bytes = kPageTokens * kHeads * layout.row_bytes() + kGap,
                .row_bytes = kHeads * layout.row_bytes()},
        memory(kPages * strides.page_bytes, std::byte{0xff}) {  // NaN
    for (std::size_t page = 0; page < kPages; ++page) {
      const auto rows = to_bytes(normal.floats(std::size_t{kPageTokens} * kHeads * (kRank + kRope)),
                                 layout.row());
      std::ranges::copy(rows,
                        memory.begin() + static_cast<std::ptrdiff_t>(page * strides.page_bytes));
    }
    strides.data = memory.data();
  }

  /// The same rows in a cache of the backend's own.
  [[nodiscard]] std::unique_ptr<Cache> copy(Backend& backend) const {
    auto cache = backend.make_cache(layout);
    for (int head = 0; head < kHeads; ++head) {
      for (int at = 0; at < kPages * kPageTokens; ++at) {
        const std::byte* row = memory.data() +
                               static_cast<std::size_t>(at / kPageTokens) * strides.page_bytes +
                               static_cast<std::size_t>(at % kPageTokens) * strides.row_bytes +
                               static_cast<std::size_t>(head) * strides.layer_bytes;
        backend.store_rows(*cache, head, at / kPageTokens, at % kPageTokens,
                           {row, layout.row_bytes()});
      }
    }
    return cache;
  }

  CacheLayout layout;
  BorrowedRows strides;
  std::vector<std::byte> memory;
};

TEST(CpuBackend, BorrowedRowsAtStridesGiveTheBitsOfTheirCopy) {
  constexpr int kQueryHeads = 5;
  constexpr StateShape kState{kQueryHeads, HeadsInRows::kRank};
  const std::vector<std::int32_t> table{2, 0, 3};
  const std::vector<std::int32_t> layers{0, 1, 2};
  for (const BackendUnderTest& under_test : every_instruction_set()) {
    for (const RowFormat format : {RowFormat::kBF16, RowFormat::kF32}) {
      const std::string& name = under_test.name;
      const DType dtype = format == RowFormat::kF32 ? DType::kF32 : DType::kBF16;
      const auto backend = under_test.make();
      Normal normal(7);
      const HeadsInRows rows(format, normal);
      const auto queries =
          to_bytes(normal.floats(2 * kQueryHeads * rows.layout.latent_dim()), dtype);
      std::vector<LeafTask> tasks;
      tasks.reserve(HeadsInRows::kHeads);
      for (int head = 0; head < HeadsInRows::kHeads; ++head) {
        tasks.push_back(
            {.item = head, .tokens = 2, .rows = 150, .query_position = 148, .state = 2 * head});
      }
      const auto states_of = [&](const Cache& cache) {
        std::vector<float> states(2 * HeadsInRows::kHeads * kState.record_floats());
        backend->call(AttendArgs{.cache = &cache,
                                 .tasks = tasks,
                                 .block_table = table,
                                 .item_layer = layers,
                                 .queries = queries.data(),
                                 .query_stride_bytes = queries.size() / 2,
                                 .query_dtype = dtype,
                                 .heads = kQueryHeads,
                                 .softmax_scale = 0.1F,
                                 .states = states.data()});
        return states;
      };
      const auto borrowed = borrow_cpu_cache(*backend, rows.layout, rows.strides);
      EXPECT_EQ(states_of(*borrowed), states_of(*rows.copy(*backend))) << name;
      std::vector<std::byte> loaded(3 * rows.layout.row_bytes());
      std::vector<std::byte> copied(loaded.size());
      backend->load_rows(*borrowed, 1, 3, 61, loaded);
      backend->load_rows(*rows.copy(*backend), 1, 3, 61, copied);
      EXPECT_EQ(loaded, copied) << name;
    }
  }
}

TEST(CpuBackend, RowsThatCannotBeBorrowedAreRefused) {
  const auto backend = make_cpu_backend({});
  Normal normal(8);
  const HeadsInRows rows(RowFormat::kBF16, normal);
  const auto refused = [&](auto change, std::string_view words) {
    BorrowedRows bad = rows.strides;
    change(bad);
    try {
      (void)borrow_cpu_cache(*backend, rows.layout, bad);
      ADD_FAILURE() << "accepted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos) << error.what();
    }
  };
  refused([](BorrowedRows& bad) { bad.data = nullptr; }, "data is null");
  refused([](BorrowedRows& bad) { ++bad.data; }, "address");
  refused([](BorrowedRows& bad) { bad.row_bytes = 158; },
          "row_bytes is 158, must be a multiple of 2 from 160");
  refused([](BorrowedRows& bad) { ++bad.page_bytes; }, "page_bytes");
  refused([](BorrowedRows& bad) { ++bad.layer_bytes; }, "layer_bytes");
}

}  // namespace
}  // namespace tributary::test
