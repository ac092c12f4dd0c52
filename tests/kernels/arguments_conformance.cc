// Bad arguments are refused with a typed error that names the field, before anything happens; and
// the small operations: memory, gather.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr LatentShape kShape{.kv_lora_rank = 8, .qk_rope_head_dim = 2, .heads = 2};

// Expects `call` to throw kInvalidArgument with `words` in its message.
void expect_refused(const std::string& words, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "accepted: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos)
        << "'" << error.what() << "' lacks '" << words << "'";
  }
}

// A good argument struct, and the same with one thing wrong.
template <typename Args, typename Change>
Args with(Args args, const Change& change) {
  change(args);
  return args;
}

TEST_P(BackendConformance, BadLayoutsAndWeightsAreRefused) {
  const CacheLayout good{.layers = 1, .pages = 1, .kv_lora_rank = 8};
  const auto make = [&](const auto& change) {
    return [&, change] { (void)backend().make_cache(with(good, change)); };
  };
  expect_refused("layers is 0", make([](auto& l) { l.layers = 0; }));
  expect_refused("pages is -1", make([](auto& l) { l.pages = -1; }));
  expect_refused("kv_lora_rank is 0", make([](auto& l) { l.kv_lora_rank = 0; }));
  expect_refused("qk_rope_head_dim is -2", make([](auto& l) { l.qk_rope_head_dim = -2; }));
  expect_refused("row format 200 is none of", make([](auto& l) { l.row_format = RowFormat{200}; }));

  const std::vector<float> data(6);
  const WeightView view{.data = data.data(), .rows = 2, .cols = 3, .row_stride = 3};
  const auto weigh = [&](const auto& change) {
    return [&, change] { (void)backend().make_weight(with(view, change)); };
  };
  expect_refused("data is null", weigh([](auto& w) { w.data = nullptr; }));
  expect_refused("rows is 0", weigh([](auto& w) { w.rows = 0; }));
  expect_refused("(of batch x rows x cols) is 1048576", weigh([](auto& w) {
                   w.batch = 1 << 20;
                   w.rows = w.cols = std::numeric_limits<std::int32_t>::max();
                 }));
  expect_refused("row_stride is -3", weigh([](auto& w) { w.row_stride = -3; }));
  expect_refused("f64", weigh([](auto& w) { w.dtype = DType::kF64; }));
  const BlockScales scales{.data = data.data(), .cols = 3};
  expect_refused("scales.cols is 0", weigh([&](auto& w) {
                   w.scales = scales;
                   w.scales.cols = 0;
                 }));
  expect_refused("scales.first is -1", weigh([&](auto& w) {
                   w.scales = scales;
                   w.scales.first = -1;
                 }));
  expect_refused("dtype is bf16, must be f32 beside block scales", weigh([&](auto& w) {
                   w.scales = scales;
                   w.dtype = DType::kBF16;
                 }));
}

TEST_P(BackendConformance, ACacheThatCannotBeIsAFullPool) {
  const CacheLayout layout{.layers = 1 << 20,
                           .pages = std::numeric_limits<std::int32_t>::max(),
                           .kv_lora_rank = 512,
                           .qk_rope_head_dim = 64};
  try {
    (void)backend().make_cache(layout);
    FAIL() << "made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPoolFull) << error.what();
  }
}

TEST_P(BackendConformance, BadAppendsAreRefusedAndStoreNothing) {
  LatentCase latents(backend(), kShape, 2, 1);
  const std::vector<float> rows(80, 1.0F);
  const auto source = device(rows);
  const std::vector<std::int32_t> layer{0};
  const AppendTask good{.item = 0, .page = 1, .slot = 0, .source = 0};
  const auto append = [&](const auto& change) {
    return [&, change] {
      // The bad one comes second: the first must not be stored either.
      const std::vector<AppendTask> tasks{good, with(good, change)};
      backend().call(AppendArgs{.cache = &latents.cache(),
                                .tasks = tasks,
                                .item_layer = layer,
                                .source = source->data(),
                                .source_stride_bytes = 20});
    };
  };
  expect_refused("item is 1", append([](auto& t) { t.item = 1; }));
  expect_refused("page is 2", append([](auto& t) { t.page = 2; }));
  expect_refused("slot is 64", append([](auto& t) { t.slot = kPageTokens; }));
  expect_refused("source record is -1", append([](auto& t) { t.source = -1; }));
  const auto other = GetParam().make();
  const std::vector<AppendTask> tasks{good};
  AppendArgs args{.cache = &latents.cache(),
                  .tasks = tasks,
                  .item_layer = layer,
                  .source = source->data(),
                  .source_stride_bytes = 20};
  expect_refused("cache was not made", [&] { other->call(args); });
  args.cache = nullptr;
  expect_refused("cache is null", [&] { backend().call(args); });
}

TEST_P(BackendConformance, BadAttendsAreRefusedAndWriteNothing) {
  LatentCase latents(backend(), kShape, 4, 2);
  Normal normal(2);
  const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{70} * 10));
  const std::vector<float> queries = normal.floats(std::size_t{2} * 2 * 10);
  const LeafTask good{.tokens = 2, .rows = 70, .first_page = leaf.first_page, .query_position = 70};
  const auto attend = [&](const auto& change) {
    return [&, change] { (void)latents.attend({good, with(good, change)}, queries, 2); };
  };
  expect_refused("item is 1", attend([](auto& t) { t.item = 1; }));
  expect_refused("tokens is 0", attend([](auto& t) { t.tokens = 0; }));
  expect_refused("tokens is 17", attend([](auto& t) { t.tokens = kMaxStepTokens + 1; }));
  expect_refused("rows is 0", attend([](auto& t) { t.rows = 0; }));
  expect_refused("first_page is 0", attend([](auto& t) { t.rows = 129; }));
  expect_refused("first_page is -1", attend([](auto& t) { t.first_page = -1; }));
  expect_refused("leaf_begin is -1", attend([](auto& t) { t.leaf_begin = -1; }));
  expect_refused("query_position", attend([](auto& t) {
                   t.query_position = std::numeric_limits<std::int64_t>::max();
                 }));
  expect_refused("query record is -1", attend([](auto& t) { t.query = -1; }));
  expect_refused("state record is -5", attend([](auto& t) { t.state = -5; }));
  expect_refused("layer is 3", [&] { (void)latents.attend({good}, queries, 2, 3); });

  const auto states = device(std::vector<float>(std::size_t{2} * 18, 5.0F));
  const auto device_queries = device(queries);
  const std::vector<LeafTask> tasks{good};
  const std::vector<std::int32_t> layer{0};
  const std::vector<std::int32_t> bad_pages{0, 4};
  const AttendArgs args{.cache = &latents.cache(),
                        .tasks = tasks,
                        .block_table = latents.block_table(),
                        .item_layer = layer,
                        .queries = device_queries->data(),
                        .query_stride_bytes = 80,
                        .query_dtype = DType::kF32,
                        .heads = 2,
                        .softmax_scale = 1,
                        .states = states->as<float>()};
  const auto call = [&](const auto& change) {
    return [&, change] { backend().call(with(args, change)); };
  };
  expect_refused("page is 4", call([&](auto& a) { a.block_table = bad_pages; }));
  expect_refused("heads is 0", call([](auto& a) { a.heads = 0; }));
  expect_refused("softmax_scale is 0", call([](auto& a) { a.softmax_scale = 0; }));
  expect_refused("softmax_scale is nan",
                 call([](auto& a) { a.softmax_scale = std::numeric_limits<float>::quiet_NaN(); }));
  expect_refused("query_dtype is f64", call([](auto& a) { a.query_dtype = DType::kF64; }));
  expect_refused("query_stride_bytes is 76", call([](auto& a) { a.query_stride_bytes = 76; }));
  expect_refused("queries is null", call([](auto& a) { a.queries = nullptr; }));
  expect_refused("states is null", call([](auto& a) { a.states = nullptr; }));
  for (const float value : host<float>(*states)) ASSERT_EQ(value, 5.0F);
  const auto other = GetParam().make();
  expect_refused("cache was not made", [&] { other->call(args); });
}

TEST_P(BackendConformance, BadMergesAndGathersAreRefused) {
  const auto states = device(std::vector<float>(60));
  const auto merge = [&](const MergeOp& op, StateShape shape = {2, 4}) {
    return [this, op, shape, pointer = states->as<float>()] {
      backend().call(MergeArgs{.ops = std::span(&op, 1), .shape = shape, .states = pointer});
    };
  };
  expect_refused("dst is -1", merge({.dst = -1, .left = 0, .right = 1, .tokens = 1}));
  expect_refused("left is -1", merge({.dst = 0, .left = -1, .right = 1, .tokens = 1}));
  expect_refused("right is -2", merge({.dst = 0, .left = 0, .right = -2, .tokens = 1}));
  expect_refused("tokens is 0", merge({.dst = 0, .left = 0, .right = 1, .tokens = 0}));
  expect_refused("level is 1", merge({.dst = 0, .left = 0, .right = 1, .tokens = 1, .level = 1}));
  expect_refused("overlap", merge({.dst = 1, .left = 0, .right = 4, .tokens = 2}));
  expect_refused("overlap", merge({.dst = 4, .left = 0, .right = 5, .tokens = 2}));
  expect_refused("heads is 0", merge({.dst = 0, .left = 0, .right = 1, .tokens = 1}, {0, 4}));
  expect_refused("width is 0", merge({.dst = 0, .left = 0, .right = 1, .tokens = 1}, {2, 0}));

  const std::vector<std::int64_t> bad{0, -1};
  expect_refused("index is -1", [&] {
    backend().call(
        GatherArgs{.index = bad, .src = states->data(), .dst = states->data(), .record_bytes = 4});
  });
  const std::vector<std::int64_t> good{0};
  expect_refused("src is null", [&] {
    backend().call(GatherArgs{.index = good, .dst = states->data(), .record_bytes = 4});
  });
  expect_refused("record_bytes is 0", [&] {
    backend().call(GatherArgs{.index = good, .src = states->data(), .dst = states->data()});
  });
}

TEST_P(BackendConformance, BadProjectionsAreRefused) {
  const auto memory = device(std::vector<float>(64));
  auto* data = memory->as<float>();
  const std::vector<float> w(6);
  const auto weight =
      backend().make_weight({.data = w.data(), .rows = 2, .cols = 3, .row_stride = 3});
  const GemmArgs gemm{.weight = weight.get(),
                      .tokens = 2,
                      .x = data,
                      .x_token_stride = 3,
                      .y = data + 32,
                      .y_token_stride = 2};
  const auto multiply = [&](const auto& change) {
    return [&, change] { backend().call(with(gemm, change)); };
  };
  expect_refused("weight is null", multiply([](auto& g) { g.weight = nullptr; }));
  expect_refused("tokens is -1", multiply([](auto& g) { g.tokens = -1; }));
  expect_refused("x is null", multiply([](auto& g) { g.x = nullptr; }));
  expect_refused("y_token_stride is 1", multiply([](auto& g) { g.y_token_stride = 1; }));
  expect_refused("x_token_stride is -1", multiply([](auto& g) { g.x_token_stride = -1; }));

  const RmsNormArgs norm{.tokens = 1, .width = 4, .x = data, .weight = data, .eps = 0, .y = data};
  const auto normalise = [&](const auto& change) {
    return [&, change] { backend().call(with(norm, change)); };
  };
  expect_refused("width is 0", normalise([](auto& n) { n.width = 0; }));
  expect_refused("eps is -1", normalise([](auto& n) { n.eps = -1; }));
  expect_refused("weight is null", normalise([](auto& n) { n.weight = nullptr; }));
  expect_refused("norm.tokens is 1",
                 [&] { backend().call(LatentRowsArgs{.norm = norm, .rope = {}}); });

  const std::vector<std::int64_t> positions{-1};
  const std::vector<double> frequencies{1};
  expect_refused("position is -1", [&] {
    backend().call(RopeArgs{
        .positions = positions, .frequencies = frequencies, .heads = 1, .x = data, .y = data});
  });
  const ConvertArgs convert{
      .rows = 1, .src = data, .src_row = plain_row(4), .dst = data, .dst_row = plain_row(4)};
  expect_refused("row format 99 is none of", [&] {
    backend().call(with(convert, [](ConvertArgs& c) { c.src_row.format = RowFormat{99}; }));
  });
  expect_refused("dst_row.values is 5", [&] {
    backend().call(with(convert, [](ConvertArgs& c) { c.dst_row = plain_row(5); }));
  });
  expect_refused("rows of bf16 to rows of bf16, one must be f32", [&] {
    backend().call(with(convert, [](ConvertArgs& c) {
      c.src_row = {RowFormat::kBF16, 3, 1};
      c.dst_row = {RowFormat::kBF16, 4, 0};
    }));
  });
  expect_refused("v_head_dim is 0", [&] {
    backend().call(DenseAttendArgs{.tokens = 1,
                                   .keys = 1,
                                   .heads = 1,
                                   .qk_nope_head_dim = 1,
                                   .softmax_scale = 1,
                                   .q = data,
                                   .kv = data,
                                   .states = data});
  });
}

TEST_P(BackendConformance, EmptyCallsDoNothing) {
  LatentCase latents(backend(), kShape, 1, 3);
  backend().call(AppendArgs{.cache = &latents.cache()});
  backend().call(AttendArgs{.cache = &latents.cache()});
  backend().call(MergeArgs{});
  backend().call(GatherArgs{});
  backend().call(RopeArgs{});
  backend().call(ConvertArgs{});
  backend().call(RmsNormArgs{});
  backend().call(LatentRowsArgs{});
  backend().call(DenseAttendArgs{});
  backend().synchronize(Deadline::after(std::chrono::seconds(1)));
}

TEST_P(BackendConformance, MemoryIsAlignedAndGatherCopiesRecords) {
  std::vector<std::byte> src(std::size_t{1000} * 7);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i * 131 >> 3);
  const auto device_src = device(src);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(device_src->data()) % 64, 0U);
  EXPECT_EQ(device_src->bytes(), src.size());
  EXPECT_EQ(host<std::byte>(*device_src), src);
  EXPECT_EQ(backend().allocate(0)->bytes(), 0U);
  std::vector<std::int64_t> index;
  for (std::int64_t i = 0; i < 500; ++i) index.push_back(i * 577 % 1000);
  const auto dst = backend().allocate(index.size() * 7);
  backend().call(
      GatherArgs{.index = index, .src = device_src->data(), .dst = dst->data(), .record_bytes = 7});
  const std::vector<std::byte> got = host<std::byte>(*dst);
  for (std::size_t i = 0; i < index.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i * 7], &src[static_cast<std::size_t>(index[i]) * 7], 7), 0) << i;
  }
}

}  // namespace
}  // namespace tributary::test
