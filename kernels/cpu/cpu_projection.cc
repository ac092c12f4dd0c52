// Splits products, norms, RoPE, conversions and copies into units of work.
#include "kernels/cpu/cpu_projection.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "core/base/ceil_div.h"

namespace tributary::cpu {
namespace {

// With less work, waking threads costs more than it saves: about ten microseconds of one core, in
// multiply-adds and in bytes moved.
constexpr std::size_t kSmallProduct = 1 << 18;
constexpr std::size_t kSmallBytes = 1 << 16;
// A unit of a product reads at least so much of the weight: kernels request lines some 16 KiB
// ahead, which is of no use where another thread has claimed the next panel.
constexpr std::size_t kUnitBytes = 1 << 16;
// Activations of a product that are packed at a time: of a prompt as many tokens as keep reading
// the weight again for the next ones far below the time of their arithmetic (512 of DeepSeek-V3's
// o_proj, at 1,024 operations for every byte of the weight).
constexpr std::size_t kMostPackedBytes = std::size_t{32} << 20;

// Runs `body` over [0, count) in chunks of about kSmallBytes, at least one element each.
template <typename Body>
void for_chunks(ThreadPool& pool, std::size_t count, std::size_t bytes_each, const Body& body) {
  const std::size_t chunk =
      std::max<std::size_t>(1, kSmallBytes / std::max<std::size_t>(1, bytes_each));
  pool.for_each(ceil_div(count, chunk), [&](std::size_t index, int /*thread*/) {
    const std::size_t end = std::min(count, (index + 1) * chunk);
    for (std::size_t i = index * chunk; i < end; ++i) body(i);
  });
}

/// A product, in blocks of kGemmTokens tokens and panels of its weight.
struct Product {
  const GemmKernel& kernel;
  const PackedWeight& weight;
  const GemmArgs& args;
  std::size_t tokens = static_cast<std::size_t>(args.tokens);
  std::size_t cols = static_cast<std::size_t>(weight.cols());
  std::size_t batch = static_cast<std::size_t>(weight.batch());
  std::size_t blocks = ceil_div(tokens, kGemmTokens);
  std::size_t depths = ceil_div(cols, kPanelDepth);  // blocks of columns
  std::byte* packed = nullptr;                       // [block][batch]; a last block may not be

  [[nodiscard]] std::size_t packed_bytes(std::size_t block_tokens) const {
    return round_up(kernel.packed_bytes(block_tokens, cols, weight.panels()), kHostAlignment);
  }
  /// The bytes of all blocks, as if the last one were whole.
  [[nodiscard]] std::size_t packed_bytes() const {
    return blocks * batch * packed_bytes(std::min(tokens, kGemmTokens));
  }
  [[nodiscard]] std::size_t tokens_of(std::size_t block) const {
    return std::min(kGemmTokens, tokens - block * kGemmTokens);
  }
  [[nodiscard]] const float* x_of(std::size_t block, std::size_t b) const {
    return args.x + static_cast<std::int64_t>(block * kGemmTokens) * args.x_token_stride +
           static_cast<std::int64_t>(b) * args.x_batch_stride;
  }
  [[nodiscard]] std::byte* packed_of(std::size_t block, std::size_t b) const {
    if (packed_bytes(tokens_of(block)) == 0) return nullptr;
    return packed + (block * batch + b) * packed_bytes(std::min(tokens, kGemmTokens));
  }

  /// index < blocks * batch * depths
  void pack(std::size_t index) const {
    const std::size_t b = index / depths % batch;
    const std::size_t block = index / depths / batch;
    std::byte* to = packed_of(block, b);
    if (to == nullptr) return;
    kernel.pack({.tokens = tokens_of(block),
                 .cols = cols,
                 .column = index % depths * kPanelDepth,
                 .x = x_of(block, b),
                 .x_token_stride = static_cast<std::size_t>(args.x_token_stride),
                 .packed = to});
  }
  /// index < blocks * batch * panels. Panels in the outer loop: the blocks of a panel are
  /// consecutive and share its memory.
  void multiply(std::size_t index, float* scratch) const {
    const std::size_t block = index % blocks;
    const std::size_t panel = index / blocks % weight.panels();
    const std::size_t b = index / blocks / weight.panels();
    kernel.multiply(
        {.panel = weight.panel(b, panel),
         .dtype = weight.dtype(),
         .cols = cols,
         .outputs = std::min(kPanel, static_cast<std::size_t>(weight.rows()) - panel * kPanel),
         .tokens = tokens_of(block),
         .x = x_of(block, b),
         .x_token_stride = static_cast<std::size_t>(args.x_token_stride),
         .packed = packed_of(block, b),
         .y = args.y + static_cast<std::int64_t>(block * kGemmTokens) * args.y_token_stride +
              static_cast<std::int64_t>(b) * args.y_batch_stride + panel * kPanel,
         .y_token_stride = static_cast<std::size_t>(args.y_token_stride)},
        scratch);
  }
};

}  // namespace

Projection::Projection(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {
  for (AlignedBytes& part : scratch_) {
    part = allocate_aligned(kGemmScratch * sizeof(float), "scratch of products");
  }
}

void Projection::gemm(const PackedWeight& weight, const GemmArgs& args) {
  const GemmKernel& kernel = weight.dtype() == DType::kBF16     ? kernels_.gemm_bf16
                             : weight.dtype() == DType::kF8E4M3 ? kernels_.gemm_f8
                                                                : kernels_.gemm;
  const Product whole{.kernel = kernel, .weight = weight, .args = args};
  const std::size_t block_bytes = whole.batch * whole.packed_bytes(kGemmTokens);
  const std::size_t blocks =
      block_bytes == 0 ? whole.blocks : std::max<std::size_t>(1, kMostPackedBytes / block_bytes);
  const auto most = static_cast<std::int64_t>(blocks * kGemmTokens);
  for (std::int64_t token = 0; token < args.tokens; token += most) {
    GemmArgs part = args;
    part.tokens = std::min(most, args.tokens - token);
    part.x += token * args.x_token_stride;
    part.y += token * args.y_token_stride;
    gemm_part(kernel, weight, part);
  }
}

void Projection::gemm_part(const GemmKernel& kernel, const PackedWeight& weight,
                           const GemmArgs& args) {
  Product product{.kernel = kernel, .weight = weight, .args = args};
  if (const std::size_t bytes = product.packed_bytes(); bytes != 0) {
    if (bytes > packed_bytes_) {
      packed_ = allocate_aligned(bytes, "the activations of a product");
      packed_bytes_ = bytes;
    }
    product.packed = packed_.get();
    for_chunks(pool_, product.blocks * product.batch * product.depths,
               std::min(product.tokens, kGemmTokens) * kPanelDepth * sizeof(float),
               [&](std::size_t index) { product.pack(index); });
  }
  const auto scratch_of = [&](int thread) {
    return reinterpret_cast<float*>(scratch_[static_cast<std::size_t>(thread)].get());
  };
  const std::size_t count = product.blocks * product.batch * weight.panels();
  const std::size_t rows = product.batch * static_cast<std::size_t>(weight.rows());
  if (rows * product.cols * product.tokens < kSmallProduct) {
    for (std::size_t index = 0; index < count; ++index) product.multiply(index, scratch_of(0));
    return;
  }
  const std::size_t chunk =
      std::max<std::size_t>(1, kUnitBytes / panel_bytes(weight.dtype(), product.cols));
  pool_.for_each(ceil_div(count, chunk), [&](std::size_t index, int thread) {
    const std::size_t end = std::min(count, (index + 1) * chunk);
    for (std::size_t i = index * chunk; i < end; ++i) product.multiply(i, scratch_of(thread));
  });
}

void Projection::run(const RmsNormArgs& args) {
  const auto width = static_cast<std::size_t>(args.width);
  for_chunks(pool_, static_cast<std::size_t>(args.tokens), width * sizeof(float),
             [&](std::size_t token) {
               const auto t = static_cast<std::int64_t>(token);
               kernels_.rms_norm(args.x + t * args.x_token_stride, args.weight, args.eps, width,
                                 args.y + t * args.y_token_stride);
             });
}

void Projection::run(const RopeArgs& args) {
  const std::size_t width = args.frequencies.size() * 2;
  const std::size_t bytes = static_cast<std::size_t>(args.heads) * width * sizeof(float);
  const std::span<const std::int64_t> positions(args.positions.data(), args.positions.size());
  for (std::size_t begin = 0; begin < positions.size(); begin += RopeAngles::kMostTokens) {
    const auto block =
        positions.subspan(begin, std::min(RopeAngles::kMostTokens, positions.size() - begin));
    angles_.prepare(pool_, block, {args.frequencies.data(), args.frequencies.size()});
    for_chunks(pool_, block.size(), bytes, [&](std::size_t token) {
      const auto t = static_cast<std::int64_t>(begin + token);
      kernels_.rotate({.x = args.x + t * args.x_token_stride,
                       .x_head_stride = static_cast<std::size_t>(args.x_head_stride),
                       .cosines = angles_.cosines(token),
                       .sines = angles_.sines(token),
                       .heads = static_cast<std::size_t>(args.heads),
                       .width = width,
                       .y = args.y + t * args.y_token_stride,
                       .y_head_stride = static_cast<std::size_t>(args.y_head_stride)});
    });
  }
}

void Projection::run(const ConvertArgs& args) {
  const std::size_t values = args.src_row.values();
  const RowFormat from = args.src_row.format;
  const RowFormat to = args.dst_row.format;
  const bool narrow = from == RowFormat::kF32 && to == RowFormat::kBF16;
  const bool widen = from == RowFormat::kBF16 && to == RowFormat::kF32;
  for_chunks(pool_, static_cast<std::size_t>(args.rows), values * sizeof(float),
             [&](std::size_t row) {
               const std::byte* src =
                   static_cast<const std::byte*>(args.src) + row * args.src_stride_bytes;
               std::byte* dst = static_cast<std::byte*>(args.dst) + row * args.dst_stride_bytes;
               if (narrow) {
                 kernels_.to_bf16(reinterpret_cast<const float*>(src), reinterpret_cast<bf16*>(dst),
                                  values);
               } else if (widen) {
                 kernels_.to_float(reinterpret_cast<const bf16*>(src),
                                   reinterpret_cast<float*>(dst), values);
               } else {
                 convert_row(args, row);
               }
             });
}

void Projection::run(const GatherArgs& args) {
  for_chunks(pool_, args.index.size(), args.record_bytes, [&](std::size_t i) {
    std::memcpy(args.dst + i * args.record_bytes,
                args.src + static_cast<std::size_t>(args.index[i]) * args.record_bytes,
                args.record_bytes);
  });
}

}  // namespace tributary::cpu
