// Launches of a layer's kernels: grids, and the choice of types.
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

namespace tributary::cuda {
namespace {

template <typename T>
__global__ void append_kernel(AppendLaunch launch) {
  append_block<T>(launch);
}
template <typename T>
__global__ void gather_kernel(GatherLaunch launch, unsigned shares) {
  gather_block<T>(launch, shares);
}
template <typename From, typename To>
__global__ void convert_kernel(ConvertArgs args, unsigned shares) {
  convert_block<From, To>(args, shares);
}
__global__ void convert_codes_kernel(ConvertArgs args) {
  convert_codes_block(args);
}
__global__ void rms_norm_kernel(RmsNormArgs args) {
  rms_norm_block(args);
}
__global__ void rope_kernel(RopeLaunch launch) {
  rope_block(launch);
}
__global__ void latent_rows_kernel(LatentRowsLaunch launch) {
  latent_rows_block(launch);
}
__global__ void attend_dense_kernel(DenseAttendArgs args) {
  attend_dense_block(args);
}
__global__ void pack_float_kernel(PackLaunch launch) {
  pack_float_block(launch);
}
__global__ void pack_parts_kernel(PackLaunch launch) {
  pack_parts_block(launch);
}
__global__ void unpack_kernel(UnpackLaunch launch) {
  unpack_block(launch);
}

template <typename From, typename To>
void launch_convert(const ConvertArgs& args, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(args.rows),
                  shares(static_cast<std::int64_t>(args.src_row.values()), kConvertThreads));
  convert_kernel<From, To><<<grid, kConvertThreads, 0, stream>>>(args, grid.y);
}

}  // namespace

void load_layer() {
  cudaFuncAttributes attributes;
  const auto load = [&attributes](auto... kernels) {
    for (const cudaError_t code : {cudaFuncGetAttributes(&attributes, kernels)...}) {
      check(code, "loading the kernels of a layer");
    }
  };
  load(append_kernel<ptx::Chunk>, append_kernel<unsigned char>, gather_kernel<ptx::Chunk>,
       gather_kernel<unsigned char>, convert_kernel<float, float>, convert_kernel<float, bf16>,
       convert_kernel<bf16, float>, convert_kernel<bf16, bf16>, convert_codes_kernel,
       rms_norm_kernel, rope_kernel, latent_rows_kernel, attend_dense_kernel, pack_float_kernel,
       pack_parts_kernel, unpack_kernel);
}

void enqueue(const AppendLaunch& launch, CUstream_st* stream) {
  const auto rows = static_cast<unsigned>(launch.count);
  if (in_chunks(launch)) {
    append_kernel<ptx::Chunk><<<rows, kCopyThreads, 0, stream>>>(launch);
  } else {
    append_kernel<unsigned char><<<rows, kCopyThreads, 0, stream>>>(launch);
  }
  check(cudaGetLastError(), "launching append");
}

void enqueue(const GatherLaunch& launch, CUstream_st* stream) {
  const auto records = static_cast<unsigned>(launch.count);
  const auto bytes = static_cast<std::int64_t>(launch.record_bytes);
  if (in_chunks(launch)) {
    const dim3 grid(records,
                    shares(bytes / static_cast<std::int64_t>(sizeof(ptx::Chunk)), kCopyThreads));
    gather_kernel<ptx::Chunk><<<grid, kCopyThreads, 0, stream>>>(launch, grid.y);
  } else {
    const dim3 grid(records, shares(bytes, kCopyThreads));
    gather_kernel<unsigned char><<<grid, kCopyThreads, 0, stream>>>(launch, grid.y);
  }
  check(cudaGetLastError(), "launching gather");
}

void enqueue(const ConvertArgs& args, CUstream_st* stream) {
  if (of_codes(args)) {
    convert_codes_kernel<<<static_cast<unsigned>(args.rows), kConvertThreads, 0, stream>>>(args);
  } else {
    with_elements(
        *plain_elements(args.src_row.format), *plain_elements(args.dst_row.format),
        [&](auto from, auto to) { launch_convert<decltype(from), decltype(to)>(args, stream); });
  }
  check(cudaGetLastError(), "launching convert");
}

void enqueue(const RmsNormArgs& args, CUstream_st* stream) {
  rms_norm_kernel<<<static_cast<unsigned>(args.tokens), kNormThreads, kNormSharedBytes, stream>>>(
      args);
  check(cudaGetLastError(), "launching rms_norm");
}

void enqueue(const RopeLaunch& launch, CUstream_st* stream) {
  rope_kernel<<<static_cast<unsigned>(launch.tokens), kRopeThreads, kRopeSharedBytes, stream>>>(
      launch);
  check(cudaGetLastError(), "launching rope");
}

void enqueue(const LatentRowsLaunch& launch, CUstream_st* stream) {
  latent_rows_kernel<<<static_cast<unsigned>(launch.rope.tokens), kRowThreads, kRowSharedBytes,
                       stream>>>(launch);
  check(cudaGetLastError(), "launching latent_rows");
}

void enqueue(const DenseAttendArgs& args, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens), static_cast<unsigned>(args.heads));
  attend_dense_kernel<<<grid, kDenseThreads, kDenseSharedBytes, stream>>>(args);
  check(cudaGetLastError(), "launching attend_dense");
}

void pack_float(const PackLaunch& launch, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(launch.rows), static_cast<unsigned>(launch.batch));
  pack_float_kernel<<<grid, kPackThreads, 0, stream>>>(launch);
  check(cudaGetLastError(), "launching pack_float");
}

void pack_parts(const PackLaunch& launch, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(launch.rows), static_cast<unsigned>(launch.batch));
  pack_parts_kernel<<<grid, kPackThreads, 0, stream>>>(launch);
  check(cudaGetLastError(), "launching pack_parts");
}

void unpack(const UnpackLaunch& launch, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(launch.tokens), static_cast<unsigned>(launch.batch));
  unpack_kernel<<<grid, kPackThreads, 0, stream>>>(launch);
  check(cudaGetLastError(), "launching unpack");
}

}  // namespace tributary::cuda
