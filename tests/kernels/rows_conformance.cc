// Rows that arrive from outside or are read back: host_page, store_rows, load_rows.
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"

namespace tributary::test {
namespace {

constexpr int kHeads = 2;
constexpr std::size_t kPage = kPageTokens;

CacheLayout layout(RowFormat format) {
  return {.layers = 2, .pages = 3, .kv_lora_rank = 16, .qk_rope_head_dim = 8, .row_format = format};
}

/// `rows` rows of numbers between 0 and 1, in the cache's type.
std::vector<std::byte> some_rows(const CacheLayout& layout, std::size_t rows, int seed) {
  const std::size_t elements = rows * static_cast<std::size_t>(layout.latent_dim());
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>((i * 37 + static_cast<std::size_t>(seed) * 11) % 97) / 97.0F;
  }
  return to_bytes(values, layout.row());
}

class RowsOf {
 public:
  RowsOf(Backend& backend, RowFormat format)
      : layout_(layout(format)), backend_(backend), cache_(backend.make_cache(layout_)) {}

  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] std::size_t row_bytes() const { return layout_.row_bytes(); }
  [[nodiscard]] std::vector<std::byte> rows(std::size_t count, int seed) const {
    return some_rows(layout_, count, seed);
  }

  void append(int layer, std::int32_t page, std::int32_t slot, std::span<const std::byte> rows) {
    const auto source = backend_.allocate(rows.size());
    backend_.upload(source->data(), rows);
    std::vector<AppendTask> tasks;
    for (std::size_t r = 0; r < rows.size() / row_bytes(); ++r) {
      tasks.push_back({0, page, slot + static_cast<std::int32_t>(r), static_cast<std::int64_t>(r)});
    }
    backend_.call(AppendArgs{.cache = cache_.get(),
                             .tasks = tasks,
                             .item_layer = std::span<const std::int32_t>(&layer, 1),
                             .source = source->data(),
                             .source_stride_bytes = row_bytes()});
    backend_.synchronize(Deadline::after(std::chrono::seconds(10)));
  }
  [[nodiscard]] std::vector<std::byte> load(int layer, std::int32_t page, std::int32_t slot,
                                            std::size_t count) {
    std::vector<std::byte> rows(count * row_bytes());
    backend_.load_rows(*cache_, layer, page, slot, rows);
    return rows;
  }
  /// The state over a whole page.
  [[nodiscard]] std::vector<float> attend(std::int32_t layer, std::int32_t page) {
    const std::size_t query_floats = kHeads * static_cast<std::size_t>(layout_.latent_dim());
    const std::vector<float> query(query_floats, 0.25F);
    const auto queries = backend_.allocate(query_floats * sizeof(float));
    backend_.upload(queries->data(), std::as_bytes(std::span(query)));
    const StateShape shape{kHeads, layout_.kv_lora_rank};
    const auto states = backend_.allocate(shape.record_bytes());
    const LeafTask task{.tokens = 1, .rows = kPageTokens, .query_position = kPageTokens};
    backend_.call(AttendArgs{.cache = cache_.get(),
                             .tasks = std::span(&task, 1),
                             .block_table = std::span(&page, 1),
                             .item_layer = std::span(&layer, 1),
                             .queries = queries->data(),
                             .query_stride_bytes = query_floats * sizeof(float),
                             .query_dtype = DType::kF32,
                             .heads = kHeads,
                             .softmax_scale = 1,
                             .states = states->as<float>()});
    backend_.synchronize(Deadline::after(std::chrono::seconds(10)));
    std::vector<float> result(shape.record_floats());
    backend_.download(std::as_writable_bytes(std::span(result)), states->data());
    return result;
  }

 private:
  CacheLayout layout_;
  Backend& backend_;
  std::unique_ptr<Cache> cache_;
};

TEST_P(BackendConformance, RowsFromOutsideAreAsAppendedOnes) {
  for (const RowFormat type : {RowFormat::kBF16, RowFormat::kF32}) {
    RowsOf appended(backend(), type);
    RowsOf stored(backend(), type);
    RowsOf written(backend(), type);
    const auto rows = appended.rows(kPage, 3);
    appended.append(1, 2, 0, rows);
    const std::span all(rows);
    const std::size_t first = 13 * stored.row_bytes();
    backend().store_rows(stored.cache(), 1, 2, 13, all.subspan(first));
    backend().store_rows(stored.cache(), 1, 2, 0, all.first(first));
    EXPECT_EQ(stored.load(1, 2, 0, kPage), rows);
    EXPECT_EQ(appended.load(1, 2, 0, kPage), rows);
    EXPECT_EQ(stored.load(1, 2, 63, 1).size(), stored.row_bytes());
    EXPECT_EQ(stored.attend(1, 2), appended.attend(1, 2));
    const auto page = backend().host_page(written.cache(), 1, 2);
    if (page.empty()) continue;  // its memory is not the host's
    ASSERT_EQ(page.size(), rows.size());
    std::copy(rows.begin(), rows.end(), page.begin());
    EXPECT_EQ(written.load(1, 2, 0, kPage), rows);
    EXPECT_EQ(written.attend(1, 2), appended.attend(1, 2));
  }
}

TEST_P(BackendConformance, RowsFromOutsideLeaveTheirNeighboursAlone) {
  RowsOf cache(backend(), RowFormat::kBF16);
  for (int layer = 0; layer < 2; ++layer) {
    for (std::int32_t page = 0; page < 3; ++page) {
      cache.append(layer, page, 0, cache.rows(kPage, layer * 3 + page));
    }
  }
  const auto before = cache.load(1, 1, 0, kPage);
  const auto row = cache.rows(2, 50);
  backend().store_rows(cache.cache(), 1, 1, 62, row);
  backend().store_rows(cache.cache(), 1, 1, 5, {});
  EXPECT_EQ(cache.load(1, 1, 0, 62),
            std::vector<std::byte>(before.begin(), before.end() - std::ssize(row)));
  EXPECT_EQ(cache.load(1, 1, 62, 2), row);
  EXPECT_EQ(cache.load(1, 2, 0, kPage), cache.rows(kPage, 5));
  EXPECT_EQ(cache.load(0, 1, 0, kPage), cache.rows(kPage, 1));
}

TEST_P(BackendConformance, RowsFromOutsideThatDoNotFitAreRefused) {
  RowsOf cache(backend(), RowFormat::kBF16);
  RowsOf other(backend(), RowFormat::kBF16);
  auto rows = cache.rows(2, 0);
  const auto refused = [&](int layer, std::int32_t page, std::int32_t slot, std::size_t bytes) {
    const std::span some = std::span(rows).first(bytes);
    EXPECT_EQ(code_of([&] { backend().store_rows(cache.cache(), layer, page, slot, some); }),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code_of([&] { backend().load_rows(cache.cache(), layer, page, slot, some); }),
              ErrorCode::kInvalidArgument);
  };
  const std::size_t row = cache.row_bytes();
  refused(-1, 0, 0, row);
  refused(2, 0, 0, row);
  refused(0, -1, 0, row);
  refused(0, 3, 0, row);
  refused(0, 0, -1, row);
  refused(0, 0, kPageTokens, row);
  refused(0, 0, kPageTokens - 1, 2 * row);
  refused(0, 0, 0, row - 1);
  EXPECT_EQ(code_of([&] { (void)backend().host_page(cache.cache(), 0, 3); }),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { (void)backend().host_page(cache.cache(), 2, 0); }),
            ErrorCode::kInvalidArgument);
  const auto stranger = GetParam().make();
  EXPECT_EQ(code_of([&] { stranger->store_rows(cache.cache(), 0, 0, 0, rows); }),
            ErrorCode::kInvalidArgument);
}

TEST_P(BackendConformance, RowsFromOutsideComeWhileOthersAreRead) {
  RowsOf cache(backend(), RowFormat::kBF16);
  cache.append(0, 0, 0, cache.rows(kPage, 1));
  const auto expected = cache.attend(0, 0);
  std::thread receiver([&] {
    for (int i = 0; i < 50; ++i) {
      for (std::int32_t page = 1; page < 3; ++page) {
        backend().store_rows(cache.cache(), 0, page, 0, cache.rows(kPage, i));
        const auto memory = backend().host_page(cache.cache(), 1, page);
        std::fill(memory.begin(), memory.end(), std::byte{1});
      }
    }
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(cache.attend(0, 0), expected);
  receiver.join();
  EXPECT_EQ(cache.load(0, 1, 0, kPage), cache.rows(kPage, 49));
}

}  // namespace
}  // namespace tributary::test
