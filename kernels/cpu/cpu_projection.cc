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

}  // namespace

Projection::Projection(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), scratch_(static_cast<std::size_t>(pool.threads())) {
  for (AlignedBytes& part : scratch_) {
    part = allocate_aligned(kGemmScratch * sizeof(float), "scratch of products");
  }
}

void Projection::gemm(const PackedWeight& weight, const GemmArgs& args) {
  const auto tokens = static_cast<std::size_t>(args.tokens);
  const auto rows = static_cast<std::size_t>(weight.rows());
  const auto cols = static_cast<std::size_t>(weight.cols());
  const auto batch = static_cast<std::size_t>(weight.batch());
  const std::size_t token_blocks = ceil_div(tokens, kGemmTokens);
  // Panels in the outer loop: the token blocks of a panel are consecutive and share its memory.
  const auto special = weight.dtype() == DType::kBF16     ? kernels_.gemm_bf16
                       : weight.dtype() == DType::kF8E4M3 ? kernels_.gemm_f8
                                                          : nullptr;
  const auto product = special != nullptr ? special : kernels_.gemm;
  const auto unit = [&](std::size_t index, int thread) {
    const std::size_t token = index % token_blocks * kGemmTokens;
    const std::size_t panel = index / token_blocks % weight.panels();
    const auto b = static_cast<std::int64_t>(index / token_blocks / weight.panels());
    const auto t = static_cast<std::int64_t>(token);
    product({.panel = weight.panel(static_cast<std::size_t>(b), panel),
             .dtype = weight.dtype(),
             .cols = cols,
             .outputs = std::min(kPanel, rows - panel * kPanel),
             .tokens = std::min(kGemmTokens, tokens - token),
             .x = args.x + t * args.x_token_stride + b * args.x_batch_stride,
             .x_token_stride = static_cast<std::size_t>(args.x_token_stride),
             .y = args.y + t * args.y_token_stride + b * args.y_batch_stride + panel * kPanel,
             .y_token_stride = static_cast<std::size_t>(args.y_token_stride)},
            reinterpret_cast<float*>(scratch_[static_cast<std::size_t>(thread)].get()));
  };
  const std::size_t units = batch * weight.panels() * token_blocks;
  if (batch * rows * cols * tokens < kSmallProduct) {
    for (std::size_t index = 0; index < units; ++index) unit(index, 0);
  } else {
    pool_.for_each(units, unit);
  }
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
  const HostIndices indices(args);
  for_chunks(pool_, indices.size(), args.record_bytes, [&](std::size_t i) {
    const std::byte* record = indices.record(i);
    if (record != nullptr) {
      std::memcpy(args.dst + i * args.record_bytes, record, args.record_bytes);
    }
  });
}

}  // namespace tributary::cpu
