// Attention against golden vectors: stored queries and caches of the published reference
// implementation, its lse and latents in float64.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/reference/golden_case.h"
#include "tests/core/reference/golden_files.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

// The golden README's bounds for just a decode kernel, float32, on the stored q and caches.
constexpr double kLatentBound = 3e-6;
constexpr double kLseBound = 5e-6;

// Rows of two arrays side by side: [count][a + b].
std::vector<float> joined(const std::vector<double>& left, int a, const std::vector<double>& right,
                          int b) {
  std::vector<float> out;
  const std::size_t count = left.size() / static_cast<std::size_t>(a);
  for (std::size_t i = 0; i < count; ++i) {
    for (int c = 0; c < a; ++c) {
      out.push_back(
          static_cast<float>(left[i * static_cast<std::size_t>(a) + static_cast<std::size_t>(c)]));
    }
    for (int c = 0; c < b; ++c) {
      out.push_back(
          static_cast<float>(right[i * static_cast<std::size_t>(b) + static_cast<std::size_t>(c)]));
    }
  }
  return out;
}

void check_group(Backend& backend, const GoldenCase& golden, const GoldenGroup& group) {
  const int rank = golden.shape.kv_lora_rank;
  const int rope = golden.shape.qk_rope_head_dim;
  const int heads = golden.shape.num_attention_heads;
  const int steps = golden.decode_steps;
  const CacheLayout layout{.layers = 1,
                           .pages = golden.batch * (golden.tokens() / kPageTokens + 1),
                           .kv_lora_rank = rank,
                           .qk_rope_head_dim = rope,
                           .row_format = group.row_format};
  const auto cache = backend.make_cache(layout);
  const std::vector<float> rows = joined(group.cache_kv, rank, group.cache_pe, rope);
  const std::vector<float> queries = joined(group.decode_q_absorbed, rank, group.decode_q_pe, rope);
  std::vector<AppendTask> appends;
  std::vector<std::int32_t> table;
  std::vector<LeafTask> tasks;
  for (int b = 0; b < golden.batch; ++b) {
    const auto first_page = static_cast<std::int32_t>(table.size());
    for (int t = 0; t < golden.tokens(); ++t) {
      // Pages from the end of the cache backwards.
      if (t % kPageTokens == 0) {
        table.push_back(layout.pages - 1 - static_cast<std::int32_t>(table.size()));
      }
      appends.push_back({0, table.back(), t % kPageTokens, b * golden.tokens() + t});
    }
    // All decode steps as the new tokens of one step: token i sees i more rows.
    tasks.push_back({.tokens = steps,
                     .rows = golden.tokens(),
                     .first_page = first_page,
                     .query_position = golden.prefill_len,
                     .query = static_cast<std::int64_t>(b) * steps,
                     .state = static_cast<std::int64_t>(b) * steps});
  }
  const std::vector<std::int32_t> layer{0};
  const std::vector<std::byte> row_bytes = to_bytes(rows, layout.row());
  const auto source = backend.allocate(row_bytes.size());
  backend.upload(source->data(), row_bytes);
  backend.call(AppendArgs{.cache = cache.get(),
                          .tasks = appends,
                          .item_layer = layer,
                          .source = source->data(),
                          .source_stride_bytes = layout.row_bytes()});
  const auto device_queries = backend.allocate(queries.size() * sizeof(float));
  backend.upload(device_queries->data(), std::as_bytes(std::span(queries)));
  const StateShape shape{heads, rank};
  const auto records = static_cast<std::size_t>(golden.batch * steps);
  std::vector<float> states(records * shape.record_floats());
  const auto device_states = backend.allocate(states.size() * sizeof(float));
  backend.call(AttendArgs{
      .cache = cache.get(),
      .tasks = tasks,
      .block_table = table,
      .item_layer = layer,
      .queries = device_queries->data(),
      .query_stride_bytes = static_cast<std::size_t>(heads * (rank + rope)) * sizeof(float),
      .query_dtype = DType::kF32,
      .heads = heads,
      .softmax_scale = static_cast<float>(golden.shape.softmax_scale()),
      .states = device_states->as<float>()});
  backend.download(std::as_writable_bytes(std::span(states)), device_states->data());
  std::vector<float> latent;
  std::vector<float> lse;
  for (std::size_t r = 0; r < records; ++r) {
    const auto begin = states.begin() + static_cast<std::ptrdiff_t>(r * shape.record_floats());
    latent.insert(latent.end(), begin, begin + heads * rank);
    lse.insert(lse.end(), begin + heads * rank, begin + heads * (rank + 1));
  }
  const std::string what = golden.name + " " + group.name;
  const TensorError error =
      measure_error(std::span<const float>(latent), group.decode_latent, rank);
  EXPECT_LE(error.relative_frobenius, kLatentBound) << what << ": " << error.text();
  expect_lse_close(what + " lse", std::span<const float>(lse), group.decode_lse, kLseBound);
}

void check_file(Backend& backend, const std::filesystem::path& path) {
  const GoldenCase golden = load_golden_case(path);
  for (const GoldenGroup& group : golden.groups) check_group(backend, golden, group);
}

TEST_P(BackendConformance, AttendMatchesGoldenTiny) {
  check_file(backend(), golden_file("tiny"));
}

TEST_P(BackendConformance, AttendMatchesGoldenLite) {
  const auto path = golden_file("lite");
  TRIBUTARY_SKIP_WITHOUT(path);
  check_file(backend(), path);
}

TEST_P(BackendConformance, AttendMatchesGoldenV3Slim) {
  const auto path = golden_file("v3-slim");
  TRIBUTARY_SKIP_WITHOUT(path);
  check_file(backend(), path);
}

TEST_P(BackendConformance, AttendToSelectedRowsMatchesGolden) {
  const auto path = golden_file("dsa-tiny");
  TRIBUTARY_SKIP_WITHOUT(path);
  const auto golden = find_golden_selection(path);
  ASSERT_TRUE(golden);
  for (const RowFormat format : {RowFormat::kF32, RowFormat::kBF16}) {
    const LatentShape shape{.kv_lora_rank = golden->kv_lora_rank,
                            .qk_rope_head_dim = golden->qk_rope_head_dim,
                            .heads = golden->heads,
                            .row_format = format,
                            .query_dtype = DType::kF32};
    LatentCase latents(backend(), shape, 12, 5, static_cast<float>(golden->softmax_scale));
    const auto values = static_cast<std::ptrdiff_t>(golden->tokens()) * shape.latent_dim();
    std::vector<LeafTask> tasks;
    for (int b = 0; b < golden->batch; ++b) {
      const auto first = golden->rows.begin() + b * values;
      const Leaf leaf = latents.add_leaf({first, first + values});
      tasks.push_back({.tokens = golden->decode_steps,
                       .rows = leaf.rows,
                       .first_page = leaf.first_page,
                       .query_position = golden->prefill_len,
                       .query = std::int64_t{b} * golden->decode_steps,
                       .state = std::int64_t{b} * golden->decode_steps});
    }
    std::vector<std::vector<std::int32_t>> lists;
    for (auto list = golden->selected.begin(); list != golden->selected.end();
         list += golden->topk) {
      lists.emplace_back(list, list + golden->topk);
    }
    latents.select(lists);
    const std::vector<float> states = latents.attend(tasks, golden->query, lists.size());
    std::vector<float> latent;
    std::vector<float> lse;
    for (std::size_t r = 0; r < lists.size(); ++r) {
      const StateShape state = shape.state();
      const auto begin = states.begin() + static_cast<std::ptrdiff_t>(r * state.record_floats());
      latent.insert(latent.end(), begin, begin + state.heads * state.width);
      lse.insert(lse.end(), begin + state.heads * state.width,
                 begin + state.heads * (state.width + 1));
    }
    const TensorError error =
        measure_error(std::span<const float>(latent), golden->latent, golden->kv_lora_rank);
    EXPECT_LE(error.relative_frobenius, kLatentBound) << shape.text() << ": " << error.text();
    expect_lse_close("lse", std::span<const float>(lse), golden->lse, kLseBound);
  }
}

}  // namespace
}  // namespace tributary::test
