#include "deploy/python/flash_mla.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <pthread.h>

#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "deploy/python/arrays.h"
#include "deploy/python/paged_attention.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// The kernels of this process with their threads and scratch memory, made at the first call, and
/// again when a call asks for another number of threads.
struct Kernels {
  std::mutex mutex;
  std::unique_ptr<PagedAttention> attention;
  int threads = 0;
};

Kernels*& process_kernels() {
  static auto* kernels = [] {
    // Threads do not survive a fork, nor does the holder of the lock: the child starts anew. It
    // leaks its copy of the scratch memory.
    static_cast<void>(pthread_atfork(nullptr, nullptr, [] { process_kernels() = new Kernels; }));
    return new Kernels;  // never destroyed: threads may outlive main()
  }();
  return kernels;
}

/// Calls run(attention), one at a time, without the interpreter's lock.
template <typename Run>
void with_kernels(int threads, const Run& run) {
  const nb::gil_scoped_release unlocked;
  Kernels& kernels = *process_kernels();
  const std::scoped_lock lock(kernels.mutex);
  if (kernels.attention == nullptr || kernels.threads != threads) {
    kernels.attention.reset();
    kernels.attention = std::make_unique<PagedAttention>(threads);
    kernels.threads = threads;
  }
  run(*kernels.attention);
}

constexpr std::int64_t kMostWidth = 1 << 20;

/// The values that one call fixes for all that take the same metadata.
struct Metadata {
  struct Field {
    const char* name = nullptr;
    std::int64_t value = 0;
  };
  using Fields = std::array<Field, 7>;
  std::optional<Fields> fields;

  void check(const PagedBatch& batch) {
    check({{{"batch_size", batch.sequences},
            {"seq_len_q", batch.tokens},
            {"num_heads_q", batch.heads},
            {"num_heads_k", batch.kv_heads},
            {"causal", batch.causal ? 1 : 0},
            {"topk", 0},
            {"extra topk", 0}}});
  }
  void check(const SelectedBatch& batch) {
    check({{{"batch_size", batch.sequences},
            {"seq_len_q", batch.tokens},
            {"num_heads_q", batch.heads},
            {"num_heads_k", 1},
            {"causal", 0},
            {"topk", batch.caches.front().most},
            {"extra topk", batch.caches.size() > 1 ? batch.caches[1].most : 0}}});
  }

 private:
  void check(const Fields& now) {
    if (!fields) fields = now;
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i].value == (*fields)[i].value) continue;
      fail(ErrorCode::kInvalidArgument,
           "tile_scheduler_metadata: {} is {}, was {} in the first call with it: "
           "get_mla_metadata() again where shapes change",
           now[i].name, now[i].value, (*fields)[i].value);
    }
  }
};

/// A new array of Python.
struct Result {
  std::byte* data = nullptr;
  nb::object object;
};

/// A tensor of torch if `like` is one, otherwise an array of NumPy, which holds bf16 as bits.
Result new_result(std::initializer_list<std::size_t> shape, DType type, nb::handle like) {
  std::size_t bytes = dtype_bytes(type);
  for (const std::size_t extent : shape) bytes *= extent;
  auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::byte* data = memory.get();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  static_cast<void>(memory.release());
  const bool torch = is_torch(like);
  nb::dlpack::dtype element = nb::dtype<float>();
  if (type == DType::kBF16) {
    element = nb::dtype<std::uint16_t>();
    if (torch) element.code = static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat);
  }
  if (torch) {
    return {data, nb::cast(nb::ndarray<nb::pytorch>(data, shape.size(), shape.begin(), owner,
                                                    nullptr, element))};
  }
  return {data, nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.begin(), owner, nullptr,
                                                element))};
}

std::size_t unsigned_of(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

std::int64_t extent(const Array& array, std::size_t dimension) {
  return array.shape.at(dimension);
}

/// `value` as an int of at least `least`.
int dimension(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, must be {} to {}", name, value, least, most);
  }
  return static_cast<int>(value);
}

/// The new tokens of a batch of either kind.
template <typename Batch>
Array read_queries(nb::handle q, std::int64_t head_dim_v, Batch& batch) {
  batch.dtype = float_type(q, "q");
  Array queries = read_array(q, {"q", batch.dtype, {-1, -1, -1, -1}, true});
  batch.sequences = dimension("q: batch_size", queries.count, 1, INT32_MAX);
  batch.tokens = dimension("q: seq_len_q", extent(queries, 1), 1, INT32_MAX);
  batch.heads = dimension("q: num_heads_q", extent(queries, 2), 1, kMostWidth);
  batch.head_dim = dimension("q: head_dim", extent(queries, 3), 1, kMostWidth);
  batch.head_dim_v = dimension("head_dim_v", head_dim_v, 1, batch.head_dim);
  const std::size_t dense =
      unsigned_of(batch.heads) * unsigned_of(batch.head_dim) * dtype_bytes(batch.dtype);
  batch.query_stride_bytes = batch.tokens == 1 ? queries.stride : dense;
  if (batch.tokens > 1 && batch.sequences > 1 &&
      queries.stride != dense * unsigned_of(batch.tokens)) {
    throw nb::value_error(
        fmt::format("q: {} bytes from one sequence to the next, expected {}: no gaps where "
                    "seq_len_q is more than 1",
                    queries.stride, dense * unsigned_of(batch.tokens))
            .c_str());
  }
  batch.queries = queries.data;
  return queries;
}

/// What the rows of a cache have to be: q's type, or with `fp8` bytes of rows with scales.
template <typename Batch>
Expected expected_cache(const char* name, bool fp8, std::int64_t block_rows, std::int64_t kv_heads,
                        Batch& batch) {
  if (!fp8) {
    batch.format = batch.dtype == DType::kF32 ? RowFormat::kF32 : RowFormat::kBF16;
    return {name, batch.dtype, {-1, block_rows, kv_heads, batch.head_dim}, true};
  }
  batch.format = RowFormat::kFp8DsMla;
  check_row_layout(batch.row());
  const auto bytes = static_cast<std::int64_t>(batch.row().bytes());
  return {name, DType::kU8, {-1, block_rows, kv_heads, bytes}, true};
}

template <typename Batch>
float scale_of(std::optional<double> softmax_scale, const Batch& batch) {
  return static_cast<float>(
      softmax_scale.value_or(1 / std::sqrt(static_cast<double>(batch.head_dim))));
}

/// (out, lse) of a batch of either kind, once run(batch) has filled them.
template <typename Batch>
nb::object attend(nb::handle q, Batch& batch, int threads) {
  const std::size_t heads = unsigned_of(batch.heads);
  const Result out = new_result({unsigned_of(batch.sequences), unsigned_of(batch.tokens), heads,
                                 unsigned_of(batch.head_dim_v)},
                                batch.dtype, q);
  const Result lse =
      new_result({unsigned_of(batch.sequences), heads, unsigned_of(batch.tokens)}, DType::kF32, q);
  batch.out = out.data;
  batch.lse = reinterpret_cast<float*>(lse.data);
  with_kernels(threads, [&](PagedAttention& attention) { attention.attend(batch); });
  return nb::make_tuple(out.object, lse.object);
}

nb::object attend_paged(nb::handle q, nb::handle k_cache, nb::handle block_table,
                        nb::handle cache_seqlens, std::int64_t head_dim_v, Metadata& metadata,
                        std::optional<double> softmax_scale, bool causal, bool fp8, int threads) {
  PagedBatch batch;
  const Array queries = read_queries(q, head_dim_v, batch);
  const Array rows = read_array(k_cache, expected_cache("k_cache", fp8, kPageTokens, -1, batch));
  batch.pages = dimension("k_cache: num_blocks", rows.count, 1, INT32_MAX);
  batch.kv_heads = dimension("k_cache: num_heads_k", extent(rows, 2), 1, batch.heads);
  if (batch.heads % batch.kv_heads != 0) {
    fail(ErrorCode::kInvalidArgument, "k_cache: num_heads_k is {}, must divide the {} heads of q",
         batch.kv_heads, batch.heads);
  }
  batch.rows = rows.data;
  batch.page_bytes = rows.stride;

  const Array table = read_array(block_table, {"block_table", {}, {batch.sequences, -1}, true});
  batch.block_table = reinterpret_cast<const std::int32_t*>(table.data);
  batch.columns = extent(table, 1);
  batch.table_stride = static_cast<std::int64_t>(table.stride / sizeof(std::int32_t));
  const Array lengths = read_array(cache_seqlens, {"cache_seqlens", {}, {batch.sequences}, false});
  batch.lengths = reinterpret_cast<const std::int32_t*>(lengths.data);
  batch.softmax_scale = scale_of(softmax_scale, batch);
  batch.causal = causal && batch.tokens > 1;
  metadata.check(batch);
  return attend(q, batch, threads);
}

/// The arguments that name a cache and the rows of it to attend to; the names of the extra ones
/// differ.
struct SlotArguments {
  struct {
    const char *cache, *indices, *length;
  } names;
  nb::handle cache, indices, length;
  Array rows, lists, lengths;

  SelectedSlots read(bool fp8, SelectedBatch& batch) {
    rows = read_array(cache, expected_cache(names.cache, fp8, -1, 1, batch));
    lists = read_array(indices, {names.indices, {}, {batch.sequences, batch.tokens, -1}, false});
    SelectedSlots slots{.name = names.indices,
                        .rows = rows.data,
                        .block_bytes = rows.stride,
                        .blocks = rows.count,
                        .block_rows = extent(rows, 1),
                        .lists = reinterpret_cast<const std::int32_t*>(lists.data),
                        .most = extent(lists, 2)};
    dimension(names.indices, slots.most, 1, INT32_MAX);
    dimension(names.cache, slots.slots(), 1, INT32_MAX);
    const std::size_t dense = unsigned_of(slots.block_rows) * batch.row().bytes();
    if (slots.block_rows != kPageTokens && slots.block_bytes != dense) {
      throw nb::value_error(fmt::format("{}: {} bytes from one block to the next, expected {}: no "
                                        "gaps unless blocks have {} rows",
                                        names.cache, slots.block_bytes, dense, kPageTokens)
                                .c_str());
    }
    if (!length.is_none()) {
      lengths = read_array(length, {names.length, {}, {batch.sequences}, false});
      slots.lengths = reinterpret_cast<const std::int32_t*>(lengths.data);
    }
    return slots;
  }
};

nb::object attend_selected(nb::handle q, nb::handle k_cache, nb::handle indices,
                           nb::handle topk_length, nb::handle extra_k_cache,
                           nb::handle extra_indices, nb::handle extra_topk_length,
                           nb::handle attn_sink, std::int64_t head_dim_v, Metadata& metadata,
                           std::optional<double> softmax_scale, bool fp8, int threads) {
  SelectedBatch batch;
  const Array queries = read_queries(q, head_dim_v, batch);
  SlotArguments main{
      {"k_cache", "indices", "topk_length"}, k_cache, indices, topk_length, {}, {}, {}};
  SlotArguments extra{{"extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"},
                      extra_k_cache,
                      extra_indices,
                      extra_topk_length,
                      {},
                      {},
                      {}};
  std::vector<SelectedSlots> caches{main.read(fp8, batch)};
  if (!extra_k_cache.is_none()) caches.push_back(extra.read(fp8, batch));
  batch.caches = caches;
  Array sink;
  if (!attn_sink.is_none()) {
    sink = read_array(attn_sink, {"attn_sink", DType::kF32, {batch.heads}, false});
    batch.sink = reinterpret_cast<const float*>(sink.data);
  }
  batch.softmax_scale = scale_of(softmax_scale, batch);
  metadata.check(batch);
  return attend(q, batch, threads);
}

nb::object merge_states(nb::handle v_a, nb::handle s_a, nb::handle v_b, nb::handle s_b, bool base2,
                        int threads) {
  StatePairs pairs;
  pairs.dtype = float_type(v_a, "v_a");
  const Array left = read_array(v_a, {"v_a", pairs.dtype, {-1, -1, -1}, true});
  pairs.tokens = left.count;
  pairs.heads = dimension("v_a: num_heads", extent(left, 1), 1, 1 << 20);
  pairs.width = dimension("v_a: head_dim", extent(left, 2), 1, 1 << 20);
  const Array right =
      read_array(v_b, {"v_b", pairs.dtype, {pairs.tokens, pairs.heads, pairs.width}, true});
  const Array left_lse = read_array(s_a, {"s_a", DType::kF32, {pairs.tokens, pairs.heads}, false});
  const Array right_lse = read_array(s_b, {"s_b", DType::kF32, {pairs.tokens, pairs.heads}, false});
  pairs.v_left = left.data;
  pairs.v_right = right.data;
  pairs.left_stride_bytes = left.stride;
  pairs.right_stride_bytes = right.stride;
  pairs.lse_left = reinterpret_cast<const float*>(left_lse.data);
  pairs.lse_right = reinterpret_cast<const float*>(right_lse.data);
  if (base2) pairs.log_unit = std::numbers::ln2_v<float>;
  const std::size_t tokens = unsigned_of(pairs.tokens);
  const Result v =
      new_result({tokens, unsigned_of(pairs.heads), unsigned_of(pairs.width)}, pairs.dtype, v_a);
  const Result s = new_result({tokens, unsigned_of(pairs.heads)}, DType::kF32, v_a);
  pairs.v = v.data;
  pairs.lse = reinterpret_cast<float*>(s.data);
  with_kernels(threads, [&](PagedAttention& attention) { attention.merge(pairs); });
  return nb::make_tuple(v.object, s.object);
}

std::string kernels(int threads) {
  std::string name;
  with_kernels(threads,
               [&](const PagedAttention& attention) { name = attention.backend().name(); });
  return name;
}

}  // namespace

void bind_flash_mla(nb::module_& module) {
  nb::class_<Metadata>(module, "SchedMeta",
                       "What get_mla_metadata() returns: the shapes of the first call that takes "
                       "it, which\nthe later ones have to have as well.")
      .def(nb::init<>());
  module.def("attend_paged", &attend_paged, "q"_a.none(), "k_cache"_a.none(),
             "block_table"_a.none(), "cache_seqlens"_a.none(), "head_dim_v"_a, "metadata"_a,
             "softmax_scale"_a.none(), "causal"_a, "is_fp8_kvcache"_a, "threads"_a,
             nb::sig("def attend_paged(q: typing.Any, k_cache: typing.Any, "
                     "block_table: typing.Any, cache_seqlens: typing.Any, head_dim_v: int, "
                     "metadata: SchedMeta, softmax_scale: float | None, causal: bool, "
                     "is_fp8_kvcache: bool, threads: int) -> tuple[typing.Any, typing.Any]"),
             "See tributary.flash_mla_with_kvcache.");
  module.def("attend_selected", &attend_selected, "q"_a.none(), "k_cache"_a.none(),
             "indices"_a.none(), "topk_length"_a.none(), "extra_k_cache"_a.none(),
             "extra_indices"_a.none(), "extra_topk_length"_a.none(), "attn_sink"_a.none(),
             "head_dim_v"_a, "metadata"_a, "softmax_scale"_a.none(), "is_fp8_kvcache"_a,
             "threads"_a,
             nb::sig("def attend_selected(q: typing.Any, k_cache: typing.Any, indices: typing.Any, "
                     "topk_length: typing.Any, extra_k_cache: typing.Any, "
                     "extra_indices: typing.Any, extra_topk_length: typing.Any, "
                     "attn_sink: typing.Any, head_dim_v: int, metadata: SchedMeta, "
                     "softmax_scale: float | None, is_fp8_kvcache: bool, threads: int) "
                     "-> tuple[typing.Any, typing.Any]"),
             "See tributary.flash_mla_with_kvcache.");
  module.def("merge_states", &merge_states, "v_a"_a.none(), "s_a"_a.none(), "v_b"_a.none(),
             "s_b"_a.none(), "base2"_a, "threads"_a,
             nb::sig("def merge_states(v_a: typing.Any, s_a: typing.Any, v_b: typing.Any, "
                     "s_b: typing.Any, base2: bool, threads: int) "
                     "-> tuple[typing.Any, typing.Any]"),
             "See tributary.merge_states.");
  module.def("kernels", &kernels, "threads"_a,
             "Of this machine and build: 'cpu/AVX2', as a pool's workers name theirs.");
}

}  // namespace tributary::python
