// The launches of layer/layer.cu, on emulated threads: the same grids and types.
#include <cstdint>

#include "kernels/cuda/attend/dispatch.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/layer/convert.h"
#include "kernels/cuda/layer/copy_records.h"
#include "kernels/cuda/layer/dense.h"
#include "kernels/cuda/layer/grid.h"
#include "kernels/cuda/layer/latent_rows.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/pack.h"
#include "kernels/cuda/layer/rms_norm.h"
#include "kernels/cuda/layer/rotation.h"
#include "tests/kernels/cuda/runtime/launch.h"

namespace tributary::cuda {
namespace {

using test::device::launch;
using test::device::require_device_memory;

/// Bytes from the first to the last of `rows` rows of `width`, `stride` apart.
std::size_t extent(std::int64_t rows, std::int64_t stride, std::int64_t width, std::size_t bytes) {
  return static_cast<std::size_t>((rows - 1) * stride + width) * bytes;
}

template <typename T>
void launch_append(const AppendLaunch& a, CUstream_st* stream) {
  const auto memory = [a] {
    require_device_memory(a.tasks, static_cast<std::size_t>(a.count) * sizeof(AppendTask),
                          "append: tasks");
    require_device_memory(a.item_layer, sizeof(std::int32_t), "append: layers of items");
    require_device_memory(a.cache, static_cast<std::size_t>(a.pages) * kPageTokens * a.row_bytes,
                          "append: the cache");
    for (std::int64_t i = 0; i < a.count; ++i) {
      const AppendTask& task = a.tasks[i];
      if (task.page == kNoPage) continue;
      require_device_memory(
          a.source + static_cast<std::size_t>(task.source) * a.source_stride_bytes, a.row_bytes,
          "append: a source row");
    }
  };
  check(
      launch(
          "append",
          {.blocks = static_cast<unsigned>(a.count), .threads = kCopyThreads, .independent = true},
          stream, memory, [a] { append_block<T>(a); }),
      "launching append");
}

template <typename T>
void launch_gather(const GatherLaunch& g, CUstream_st* stream) {
  const auto memory = [g] {
    require_device_memory(g.index, static_cast<std::size_t>(g.count) * sizeof(std::int64_t),
                          "gather: the index");
    for (std::int64_t i = 0; i < g.count; ++i) {
      if (g.index[i] == kNoRecord) continue;
      require_device_memory(g.src + static_cast<std::size_t>(g.index[i]) * g.record_bytes,
                            g.record_bytes, "gather: a source record");
      require_device_memory(g.dst + static_cast<std::size_t>(i) * g.record_bytes, g.record_bytes,
                            "gather: a record");
    }
  };
  const unsigned by = shares(static_cast<std::int64_t>(g.record_bytes / sizeof(T)), kCopyThreads);
  check(launch("gather",
               {.blocks = static_cast<unsigned>(g.count),
                .blocks_y = by,
                .threads = kCopyThreads,
                .independent = true},
               stream, memory, [g, by] { gather_block<T>(g, by); }),
        "launching gather");
}

void check_memory(const ConvertArgs& c) {
  const auto last = static_cast<std::size_t>(c.rows - 1);
  require_device_memory(c.src, last * c.src_stride_bytes + c.src_row.bytes(),
                        "convert: the source");
  require_device_memory(c.dst, last * c.dst_stride_bytes + c.dst_row.bytes(),
                        "convert: the result");
}

void launch_convert_codes(const ConvertArgs& c, CUstream_st* stream) {
  check(launch(
            "convert", {.blocks = static_cast<unsigned>(c.rows), .threads = kConvertThreads},
            stream, [c] { check_memory(c); }, [c] { convert_codes_block(c); }),
        "launching convert");
}

template <typename From, typename To>
void launch_convert(const ConvertArgs& c, CUstream_st* stream) {
  const unsigned by = shares(static_cast<std::int64_t>(c.src_row.values()), kConvertThreads);
  check(launch(
            "convert",
            {.blocks = static_cast<unsigned>(c.rows),
             .blocks_y = by,
             .threads = kConvertThreads,
             .independent = true},
            stream, [c] { check_memory(c); }, [c, by] { convert_block<From, To>(c, by); }),
        "launching convert");
}

/// Checks the operand, and the activations that are packed into it.
void check_memory(const PackLaunch& p, int parts, std::size_t element) {
  require_device_memory(p.packed,
                        static_cast<std::size_t>(p.batch * parts * p.rows * p.cols) * element,
                        "a product's operand");
  for (const std::int64_t batch : {std::int64_t{0}, p.batch - 1}) {
    require_device_memory(p.x + batch * p.x_batch_stride,
                          extent(p.tokens, p.x_token_stride, p.width, sizeof(float)),
                          "a product's activations");
  }
}

simt::Launch pack_grid(const PackLaunch& p) {
  return {.blocks = static_cast<unsigned>(p.rows),
          .blocks_y = static_cast<unsigned>(p.batch),
          .threads = kPackThreads,
          .independent = true};
}

void check_memory(const RmsNormArgs& n) {
  require_device_memory(n.weight, static_cast<std::size_t>(n.width) * sizeof(float),
                        "rms_norm: the weight");
  require_device_memory(n.x, extent(n.tokens, n.x_token_stride, n.width, sizeof(float)),
                        "rms_norm: x");
  require_device_memory(n.y, extent(n.tokens, n.y_token_stride, n.width, sizeof(float)),
                        "rms_norm: y");
}

void check_memory(const RopeLaunch& r) {
  require_device_memory(r.positions, static_cast<std::size_t>(r.tokens) * sizeof(std::int64_t),
                        "rope: positions");
  require_device_memory(r.frequencies, static_cast<std::size_t>(r.pairs) * sizeof(double),
                        "rope: frequencies");
  const std::int64_t x_width = (r.heads - 1) * r.x_head_stride + 2 * r.pairs;
  const std::int64_t y_width = (r.heads - 1) * r.y_head_stride + 2 * r.pairs;
  require_device_memory(r.x, extent(r.tokens, r.x_token_stride, x_width, sizeof(float)), "rope: x");
  require_device_memory(r.y, extent(r.tokens, r.y_token_stride, y_width, sizeof(float)), "rope: y");
}

}  // namespace

void load_layer() {
  for (const char* name : {"append", "gather", "convert", "rms_norm", "rope", "latent_rows",
                           "attend_dense", "pack_float", "pack_parts", "unpack"}) {
    check(test::device::load_kernel(name), "loading the kernels of a layer");
  }
}

void enqueue(const AppendLaunch& a, CUstream_st* stream) {
  if (in_chunks(a)) {
    launch_append<ptx::Chunk>(a, stream);
  } else {
    launch_append<unsigned char>(a, stream);
  }
}

void enqueue(const GatherLaunch& g, CUstream_st* stream) {
  if (in_chunks(g)) {
    launch_gather<ptx::Chunk>(g, stream);
  } else {
    launch_gather<unsigned char>(g, stream);
  }
}

void enqueue(const ConvertArgs& c, CUstream_st* stream) {
  if (of_codes(c)) return launch_convert_codes(c, stream);
  with_elements(
      *plain_elements(c.src_row.format), *plain_elements(c.dst_row.format),
      [&](auto from, auto to) { launch_convert<decltype(from), decltype(to)>(c, stream); });
}

void enqueue(const RmsNormArgs& n, CUstream_st* stream) {
  check(launch(
            "rms_norm",
            {.blocks = static_cast<unsigned>(n.tokens),
             .threads = kNormThreads,
             .shared_bytes = kNormSharedBytes},
            stream, [n] { check_memory(n); }, [n] { rms_norm_block(n); }),
        "launching rms_norm");
}

void enqueue(const RopeLaunch& r, CUstream_st* stream) {
  check(launch(
            "rope",
            {.blocks = static_cast<unsigned>(r.tokens),
             .threads = kRopeThreads,
             .shared_bytes = kRopeSharedBytes},
            stream, [r] { check_memory(r); }, [r] { rope_block(r); }),
        "launching rope");
}

void enqueue(const LatentRowsLaunch& l, CUstream_st* stream) {
  const auto memory = [l] {
    check_memory(l.norm);
    check_memory(l.rope);
  };
  check(launch("latent_rows",
               {.blocks = static_cast<unsigned>(l.rope.tokens),
                .threads = kRowThreads,
                .shared_bytes = kRowSharedBytes},
               stream, memory, [l] { latent_rows_block(l); }),
        "launching latent_rows");
}

void enqueue(const DenseAttendArgs& d, CUstream_st* stream) {
  const auto memory = [d] {
    const auto floats = [](const float* data, std::int64_t count, const char* what) {
      if (count > 0) {
        require_device_memory(data, static_cast<std::size_t>(count) * sizeof(float), what);
      }
    };
    const std::int64_t heads = d.heads;
    floats(d.q, d.tokens * heads * (d.qk_nope_head_dim + d.qk_rope_head_dim), "dense: q");
    floats(d.kv, d.keys * heads * (d.qk_nope_head_dim + d.v_head_dim), "dense: kv");
    floats(d.k_pe, d.keys * d.qk_rope_head_dim, "dense: k_pe");
    floats(d.states, d.tokens * heads * (d.v_head_dim + 1), "dense: states");
  };
  check(launch("attend_dense",
               {.blocks = static_cast<unsigned>(d.tokens),
                .blocks_y = static_cast<unsigned>(d.heads),
                .threads = kDenseThreads,
                .shared_bytes = kDenseSharedBytes},
               stream, memory, [d] { attend_dense_block(d); }),
        "launching attend_dense");
}

void pack_float(const PackLaunch& p, CUstream_st* stream) {
  check(launch(
            "pack_float", pack_grid(p), stream, [p] { check_memory(p, 1, sizeof(float)); },
            [p] { pack_float_block(p); }),
        "launching pack_float");
}

void pack_parts(const PackLaunch& p, CUstream_st* stream) {
  check(launch(
            "pack_parts", pack_grid(p), stream, [p] { check_memory(p, kParts, sizeof(bf16)); },
            [p] { pack_parts_block(p); }),
        "launching pack_parts");
}

void unpack(const UnpackLaunch& u, CUstream_st* stream) {
  const auto memory = [u] {
    require_device_memory(
        u.packed, static_cast<std::size_t>(u.batch * u.parts * u.rows * u.cols) * sizeof(float),
        "a product's result");
    for (const std::int64_t batch : {std::int64_t{0}, u.batch - 1}) {
      require_device_memory(u.y + batch * u.y_batch_stride,
                            extent(u.tokens, u.y_token_stride, u.width, sizeof(float)),
                            "what a product is unpacked to");
    }
  };
  check(launch("unpack",
               {.blocks = static_cast<unsigned>(u.tokens),
                .blocks_y = static_cast<unsigned>(u.batch),
                .threads = kPackThreads,
                .independent = true},
               stream, memory, [u] { unpack_block(u); }),
        "launching unpack");
}

}  // namespace tributary::cuda
