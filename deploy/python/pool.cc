#include "deploy/python/pool.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/mla_shape.h"
#include "deploy/local/local_pool.h"
#include "deploy/python/client.h"
#include "deploy/python/head_weights.h"
#include "deploy/python/shape_object.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

/// A Client together with the tier itself.
struct Pool : Client {
  std::shared_ptr<LocalPool> local;
  int workers = 0;
};

std::string text_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object));
}

/// A name or a path stays as it is; anything else becomes the five numbers.
void read_shape(nb::handle shape, std::optional<double> softmax_scale, WorkerOptions& options) {
  if (!names_shape(shape)) {
    options.given_shape = read_mla_shape(shape, softmax_scale);
    return;
  }
  options.shape = text_of(shape);
  if (!softmax_scale) return;
  options.given_shape = find_mla_shape(options.shape);
  // The same number of layers as without a scale of the caller's.
  if (is_mla_preset(options.shape)) options.given_shape->layers = std::max(options.layers, 1);
  options.given_shape->softmax_scale = *softmax_scale;
  validate(*options.given_shape);
}

DType query_dtype_of(const std::string& name) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    if (name == dtype_name(type)) return type;
  }
  fail(ErrorCode::kInvalidArgument, "query {}: expected bf16 or f32", quote(name));
}

RowFormat row_format_of(const std::string& name) {
  const auto format = find_row_format(name);
  if (!format) {
    fail(ErrorCode::kInvalidArgument, "rows {}: expected {}", quote(name),
         row_format_names(row_formats(), " or "));
  }
  return *format;
}

int checked(const char* name, int value, int min, int max) {
  if (value < min || value > max) {
    fail(ErrorCode::kInvalidArgument, "{} {}: expected {} .. {}", name, value, min, max);
  }
  return value;
}

struct PoolArguments {
  nb::object shape, model, kv_b_proj;
  int layers = 0;
  std::optional<double> softmax_scale;
  double kv_gib = 0;
  std::string rows, query;
  int v_head_dim = 0;
  int leaf_tokens = 0;
  int topk = -1;
  int threads = 0;
  std::string backend, costs;
  double close_timeout = 0;
};

/// The weights that the pool projects with if it has no model, otherwise null. WorkerOptions do not
/// keep them.
std::shared_ptr<const GivenHeadWeights> given_head_weights(const PoolArguments& arguments,
                                                           WorkerOptions& options) {
  const bool given = !arguments.kv_b_proj.is_none();
  if (given && options.model) {
    fail(ErrorCode::kInvalidArgument, "kv_b_proj: a model has its own");
  }
  if (!given && arguments.v_head_dim != 0) {
    fail(ErrorCode::kInvalidArgument, "v_head_dim {}: expected with kv_b_proj alone",
         arguments.v_head_dim);
  }
  if (!given) return nullptr;
  auto weights =
      read_head_weights(arguments.kv_b_proj, arguments.v_head_dim,
                        options.given_shape ? *options.given_shape : find_mla_shape(options.shape));
  options.given_head_weights = weights;
  return weights;
}

WorkerOptions worker_options(const PoolArguments& arguments) {
  constexpr int kMost = 1024;
  WorkerOptions options = local_options();
  options.layers = checked("layers", arguments.layers, 0, kMost);
  options.threads = checked("threads", arguments.threads, 0, kMost);
  options.kv_gib = arguments.kv_gib;
  options.leaf_tokens = arguments.leaf_tokens;
  options.topk = arguments.topk;
  options.row_format = row_format_of(arguments.rows);
  options.query_dtype = query_dtype_of(arguments.query);
  options.backend = arguments.backend;
  options.costs = arguments.costs;
  if (arguments.model.is_none()) {
    read_shape(arguments.shape, arguments.softmax_scale, options);
  } else if (arguments.softmax_scale) {
    fail(ErrorCode::kInvalidArgument, "softmax_scale: a model has its own");
  } else {
    options.model = text_of(arguments.model);
  }
  return options;
}

LocalPoolLimits pool_limits(const PoolArguments& arguments) {
  constexpr double kMost = 24 * 3600;
  const double end = arguments.close_timeout;
  if (!(end > 0 && end <= kMost)) {  // NaN too
    fail(ErrorCode::kInvalidArgument, "close_timeout {}: expected seconds above 0, up to {}", end,
         kMost);
  }
  return {.end = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(end * 1000)))};
}

Pool make_pool(int workers, const PoolArguments& arguments, double timeout,
               std::int64_t max_in_flight_bytes) {
  const TierClientConfig config = call_config(timeout, max_in_flight_bytes);
  const LocalPoolLimits limits = pool_limits(arguments);
  WorkerOptions options = worker_options(arguments);
  const auto weights = given_head_weights(arguments, options);
  std::shared_ptr<LocalPool> local;
  std::unique_ptr<TierClient> client;
  {
    const Unlocked unlocked;
    local = std::make_shared<LocalPool>(workers, options, limits);
    client = local->make_client(config);
  }
  Pool pool;
  pool.tier = share_tier(std::move(client), local);
  pool.url = "local";
  pool.local = std::move(local);
  pool.workers = workers;
  return pool;
}

void close(Pool& pool) {
  const std::shared_ptr<LocalPool> local = pool.local;
  {
    const Unlocked unlocked;
    local->close();
  }
  pool.tier.reset();
}

std::vector<std::int64_t> pages_held(const Pool& pool) {
  static_cast<void>(usable(pool.tier));
  const Heartbeat now = pool.local->heartbeat();
  std::vector<std::int64_t> pages;
  pages.reserve(now.workers.size());
  for (const auto& worker : now.workers) {
    pages.push_back(std::int64_t{worker.pages_used} + worker.pages_reserved);
  }
  return pages;
}

}  // namespace

void bind_pool(nb::module_& module) {
  nb::class_<Pool, Client>(
      module, "Pool",
      "A tier inside this process, with the interface of a Client: the leader and the workers of\n"
      "`tributary up` as threads, rows and queries handed over in memory. No service, no MPI, no\n"
      "ports. Of the control plane it has what decides on admissions, and neither HTTP nor\n"
      "metrics. As a context manager it is closed at the end of the block; at the latest it ends\n"
      "with the interpreter. Its sequences are of use in this process alone, and not after\n"
      "os.fork().")
      .def(
          "__init__",
          [](Pool* place, int workers, nb::object shape, nb::object model, int layers,
             std::optional<double> softmax_scale, double kv_gib, const std::string& rows,
             const std::string& query, nb::object kv_b_proj, int v_head_dim,
             std::optional<int> leaf_tokens, std::optional<int> topk, int threads,
             const std::string& backend, const std::string& costs, double timeout,
             std::int64_t max_in_flight_bytes, double close_timeout) {
            const PoolArguments arguments{
                .shape = std::move(shape),
                .model = std::move(model),
                .kv_b_proj = std::move(kv_b_proj),
                .layers = layers,
                .softmax_scale = softmax_scale,
                .kv_gib = kv_gib,
                .rows = rows,
                .query = query,
                .v_head_dim = v_head_dim,
                .leaf_tokens =
                    leaf_tokens ? checked("leaf_tokens", *leaf_tokens, kPageTokens, 1 << 20) : 0,
                .topk = topk ? checked("topk", *topk, 0, kMaxTopk) : -1,
                .threads = threads,
                .backend = backend,
                .costs = costs,
                .close_timeout = close_timeout};
            new (place) Pool(make_pool(workers, arguments, timeout, max_in_flight_bytes));
          },
          "workers"_a = 1, "shape"_a = "deepseek-v2-lite", nb::kw_only(), "model"_a = nb::none(),
          "layers"_a = 0, "softmax_scale"_a = nb::none(), "kv_gib"_a = 0.25, "rows"_a = "bf16",
          "query"_a = "bf16", "kv_b_proj"_a = nb::none(), "v_head_dim"_a = 0,
          "leaf_tokens"_a = nb::none(), "topk"_a = nb::none(), "threads"_a = 0, "backend"_a = "cpu",
          "costs"_a = "cpu", "timeout"_a = 10.0, "max_in_flight_bytes"_a = std::int64_t{256} << 20,
          "close_timeout"_a = 60.0,
          nb::sig("def __init__(self, workers: int = 1, shape: typing.Any = 'deepseek-v2-lite', *, "
                  "model: str | os.PathLike | None = None, layers: int = 0, "
                  "softmax_scale: float | None = None, kv_gib: float = 0.25, rows: str = 'bf16', "
                  "query: str = 'bf16', "
                  "kv_b_proj: collections.abc.Iterable[typing.Any] | None = None, "
                  "v_head_dim: int = 0, leaf_tokens: int | None = None, "
                  "topk: int | None = None, threads: int = 0, "
                  "backend: str = 'cpu', costs: str = 'cpu', timeout: float = 10.0, "
                  "max_in_flight_bytes: int = 268435456, close_timeout: float = 60.0) -> None"),
          "Named as the flags of `tributary up`. Returns when the pool serves; raises "
          "DeadlineExceeded\n"
          "where it does not within half an hour.\n\n"
          "workers: threads that each hold a share of the rows and compute it. shape: a preset's\n"
          "name, the path of a shape or a config.json, a dict of either (heads, kv_lora_rank,\n"
          "qk_rope_head_dim, layers, softmax_scale), or a Shape. model: weights instead, for\n"
          "attend_projected() and forward(): a folder with config.json and *.safetensors, or a\n"
          "golden file. layers: 0 is the shape's, 1 of a preset. softmax_scale: instead of the\n"
          "shape's. kv_gib: memory for rows of each worker, all of it written at the start. rows,\n"
          "query: 'bf16' or 'f32'. kv_b_proj: W_UK and W_UV without a model, for\n"
          "attend(absorbed=False) and attend_projected(): of each layer an array\n"
          "[heads * (N + v_head_dim), kv_lora_rank], fp32 or bf16, as a DeepSeek model's\n"
          "self_attn.kv_b_proj.weight; copied. leaf_tokens: a power of two from 64 on; None is\n"
          "2048, or 32768 with a topk.\n"
          "topk: positions that a token selects at most (step.attend(selected=)); 0 for dense\n"
          "attention, None for the shape's.\n"
          "threads: of each worker; 0 is its share of the cores. backend: 'cpu', one of its\n"
          "instruction sets ('cpu/avx2'),\n"
          "or 'reference'. costs: by which machine's constants sequences are placed. timeout and\n"
          "max_in_flight_bytes as for Client. close_timeout: seconds that close() waits for the "
          "pool's\n"
          "threads, and the end of the interpreter for those of all pools side by side.")
      .def_prop_ro("workers", [](const Pool& pool) { return pool.workers; })
      .def_prop_ro(
          "shape", [](const Pool& pool) { return pool.local->shape(); }, "What it serves.")
      .def_prop_ro(
          "pages_per_worker", [](const Pool& pool) { return pool.local->pages_per_worker(); },
          "Pages of 64 tokens, all layers, that each worker has memory for.")
      .def_prop_ro("pages_held", &pages_held, "Pages in use or reserved, of each worker.")
      .def_prop_ro("closed", [](const Pool& pool) { return pool.tier == nullptr; })
      .def("close", &close,
           "Ends the pool, after the round that runs now, and joins its threads; what still waits\n"
           "raises PoolLost. Not an error if it has been closed. Raises DeadlineExceeded if the\n"
           "threads have not ended after close_timeout: it may be called again then.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Pool"))
      .def("__exit__", [](Pool& pool, const nb::args& /*raised*/) { close(pool); })
      .def("__repr__", [](const Pool& pool) {
        return fmt::format("<tributary.Pool of {} workers{}>", pool.workers,
                           pool.tier == nullptr ? ", closed" : "");
      });
}

}  // namespace tributary::python
