// The assumptions of the many-rows kernel about sm_90a, tested one by one with the kernel's own
// instructions: where a tile lands, what descriptors mean, which writes products see, what a
// cluster shares. Small integers make every sum exact, and results are compared with ==.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cuda/base/driver_function.h"
#include "kernels/cuda/sm90/layout.h"
#include "tests/gpu/first_light_device.h"
#include "tests/gpu/first_light_probe_kernels.cuh"

namespace tributary::first_light {

inline cudaLaunchConfig_t cluster_launch(int grid, int threads, std::size_t shared, int blocks,
                                         cudaStream_t stream, cudaLaunchAttribute* cluster) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim.x = static_cast<unsigned>(blocks);
  cluster->val.clusterDim.y = 1;
  cluster->val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = cluster;
  config.numAttrs = 1;
  return config;
}

/// As kernels/cuda/sm90/tensor_map.cc makes it.
inline bool make_map(const std::byte* cache, std::int64_t rows, void* map) {
  void* function = nullptr;
  check(cuda::find_driver_function("cuTensorMapEncodeTiled", 12000, &function),
        "cuTensorMapEncodeTiled");
  if (function == nullptr) return false;
  const cuuint64_t sizes[2] = {sm90::kLatent, static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {sm90::kLatent * 2};
  const cuuint32_t box[2] = {sm90::kColumns, sm90::kPage};
  const cuuint32_t steps[2] = {1, 1};
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
             static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
             const_cast<std::byte*>(cache), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// chunk_at() of the layout, which the host cannot call: where 16 bytes of a row of a tile lie.
constexpr std::size_t swizzled(int row, int chunk) {
  return static_cast<std::size_t>(row) * sm90::kRowBytes +
         static_cast<std::size_t>(chunk ^ (row & 7)) * 16;
}

inline std::vector<bf16> small_integers(std::size_t count, std::uint32_t state) {
  std::vector<bf16> values(count);
  for (bf16& value : values) {
    state = state * 1664525U + 1013904223U;
    value = to_bf16(static_cast<float>(state >> 28) - 7.0F);
  }
  return values;
}

/// a [64 x 64] times b, which is [64 x n] or, transposed, [n x 64]; plus `before`.
inline std::vector<float> product(const std::vector<bf16>& a, const std::vector<bf16>& b, int n,
                                  bool transposed, float before) {
  std::vector<float> sum(static_cast<std::size_t>(kTile * n), before);
  for (int r = 0; r < kTile; ++r) {
    for (int c = 0; c < n; ++c) {
      for (int k = 0; k < kTile; ++k) {
        sum[static_cast<std::size_t>(r * n + c)] +=
            to_float(a[static_cast<std::size_t>(r * kTile + k)]) *
            to_float(b[static_cast<std::size_t>(transposed ? c * kTile + k : k * n + c)]);
      }
    }
  }
  return sum;
}

inline std::size_t different(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] == b[i] ? 0 : 1;
  return count;
}

template <typename Kernel>
void allow_shared(Kernel kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kProbeBytes)),
        "shared memory");
}

template <int kBlocks>
int ask_tma(cudaStream_t stream) {
  std::vector<bf16> array(std::size_t{2} * sm90::kPage * sm90::kLatent);
  for (std::size_t i = 0; i < array.size(); ++i) array[i].bits = static_cast<std::uint16_t>(i);
  const OnDevice<bf16> source(array, stream);
  const OnDevice<std::uint32_t> out(
      std::vector<std::uint32_t>(kBlocks * kBlocks * sm90::kTileBytes / 4), stream);
  alignas(128) CUtensorMap map;
  if (!make_map(reinterpret_cast<const std::byte*>(source.get()), 2 * sm90::kPage, &map)) {
    give_up("the driver makes no tensor map");
  }
  allow_shared(tma_probe<kBlocks>);
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config =
      cluster_launch(kBlocks, sm90::kGroupThreads, kProbeBytes, kBlocks, stream, &cluster);
  check(cudaLaunchKernelEx(&config, tma_probe<kBlocks>, map, out.get()), "tma");
  finish(stream, "tma");
  const std::vector<std::uint32_t> got = out.fetch(stream);
  const auto* halves = reinterpret_cast<const std::uint16_t*>(got.data());
  std::size_t wrong = 0;
  for (int block = 0; block < kBlocks; ++block) {
    for (int tile = 0; tile < kBlocks; ++tile) {
      for (int row = 0; row < kTile; ++row) {
        for (int column = 0; column < kTile; ++column) {
          const std::size_t at =
              static_cast<std::size_t>((block * kBlocks + tile)) * (sm90::kTileBytes / 2) +
              swizzled(row, column / 8) / 2 + static_cast<std::size_t>(column % 8);
          const int expected = (sm90::kPage + row) * sm90::kLatent + (tile + 1) * kTile + column;
          if (halves[at] == static_cast<std::uint16_t>(expected)) continue;
          if (wrong++ == 0) {
            std::printf("WRONG block %d tile %d row %d column %d: element %d, expected %d\n", block,
                        tile, row, column, halves[at], static_cast<std::uint16_t>(expected));
          }
        }
      }
    }
  }
  std::printf("%zu elements are not where chunk_at says\n", wrong);
  if (wrong > 0)
    std::printf("symptom: %s\n", kBlocks == 1 ? "a tile lands elsewhere" : "multicast");
  return wrong == 0 ? 0 : 1;
}

inline int ask_rows(cudaStream_t stream, int rounds) {
  const std::vector<bf16> a = small_integers(kTile * kTile, 1);
  const std::vector<bf16> b = small_integers(kTile * kTile, 2);
  const OnDevice<bf16> left(a, stream);
  const OnDevice<bf16> right(b, stream);
  const OnDevice<float> out(std::vector<float>(kTile * kTile), stream);
  const std::vector<float> expected = product(a, b, kTile, true, 0);
  allow_shared(rows_probe);
  std::size_t wrong[2] = {};
  for (const bool exchange : {false, true}) {
    if (exchange && (wrong[0] == 0 || rounds > 1)) break;
    rows_probe<<<1, sm90::kGroupThreads, kProbeBytes, stream>>>(left.get(), right.get(), out.get(),
                                                                exchange, rounds);
    check(cudaGetLastError(), "rows");
    finish(stream, "rows");
    wrong[exchange ? 1 : 0] = different(out.fetch(stream), expected);
    std::printf("K-major, %d rounds, distances %s: %zu of %d sums wrong\n", rounds,
                exchange ? "exchanged" : "as ours", wrong[exchange ? 1 : 0], kTile * kTile);
  }
  if (wrong[0] > 0) {
    std::printf("symptom: %s\n", rounds > 1 ? "a product misses a store" : "K-major descriptor");
  }
  return wrong[0] == 0 ? 0 : 1;
}

inline int ask_columns(cudaStream_t stream, bool registers) {
  const std::vector<bf16> a = small_integers(kTile * kTile, 3);
  const std::vector<bf16> b = small_integers(kTile * kWide, 4);
  const OnDevice<bf16> left(a, stream);
  const OnDevice<bf16> right(b, stream);
  const std::vector<float> before(kTile * kWide, 0.5F);
  OnDevice<float> out(before, stream);
  const std::vector<float> expected = product(a, b, kWide, false, 0.5F);
  allow_shared(columns_probe);
  std::size_t wrong[2] = {};
  for (const bool exchange : {false, true}) {
    if (exchange && wrong[0] == 0) break;
    out.set(before, stream);
    columns_probe<<<1, sm90::kGroupThreads, kProbeBytes, stream>>>(left.get(), right.get(),
                                                                   out.get(), registers, exchange);
    check(cudaGetLastError(), "columns");
    finish(stream, "columns");
    wrong[exchange ? 1 : 0] = different(out.fetch(stream), expected);
    std::printf("MN-major, weights from %s, distances %s: %zu of %d sums wrong\n",
                registers ? "registers" : "shared memory", exchange ? "exchanged" : "as ours",
                wrong[exchange ? 1 : 0], kTile * kWide);
  }
  if (wrong[0] > 0) std::printf("symptom: MN-major descriptor\n");
  return wrong[0] == 0 ? 0 : 1;
}

/// Products of weight 0 with the largest values leave a sum's bits, the smallest and largest
/// included.
inline int ask_zero(cudaStream_t stream) {
  const std::vector<bf16> a(kTile * kTile);
  const std::vector<bf16> b(kTile * kWide, bf16{0x7f7f});
  std::vector<float> before(kTile * kWide);
  Numbers numbers(5);
  for (float& value : before) value = numbers() * 1e-3F;
  for (std::size_t i = 0; i < before.size(); i += 16) before[i] = i % 32 == 0 ? 2e-38F : 3e38F;
  const OnDevice<bf16> left(a, stream);
  const OnDevice<bf16> right(b, stream);
  int status = 0;
  allow_shared(columns_probe);
  for (const bool registers : {false, true}) {
    const OnDevice<float> out(before, stream);
    columns_probe<<<1, sm90::kGroupThreads, kProbeBytes, stream>>>(left.get(), right.get(),
                                                                   out.get(), registers, false);
    check(cudaGetLastError(), "zero");
    finish(stream, "zero");
    const std::vector<float> after = out.fetch(stream);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (std::memcmp(&after[i], &before[i], sizeof(float)) == 0) continue;
      if (wrong++ == 0) {
        std::printf("WRONG: %.9g became %.9g\n", static_cast<double>(before[i]),
                    static_cast<double>(after[i]));
      }
    }
    std::printf("weights from %s: %zu sums changed\n", registers ? "registers" : "shared memory",
                wrong);
    if (wrong > 0) status = 1;
  }
  if (status != 0) std::printf("symptom: a weight of zero changes a sum\n");
  return status;
}

inline int ask_registers(cudaStream_t stream) {
  const OnDevice<std::uint32_t> out(std::vector<std::uint32_t>(sm90::kThreads), stream);
  registers_probe<<<1, sm90::kThreads, 0, stream>>>(out.get());
  check(cudaGetLastError(), "registers");
  finish(stream, "registers");
  std::uint32_t wrong = 0;
  std::uint32_t thread = 0;
  for (const std::uint32_t value : out.fetch(stream)) wrong += value == ++thread ? 0U : 1U;
  std::printf("%u threads did not come back\n", wrong);
  return wrong == 0 ? 0 : 1;
}

/// The question of this name, or -1.
inline int ask_probe(const std::string& question) {
  constexpr int kRounds = 1000;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
  if (question == "tma") return ask_tma<1>(stream);
  if (question == "kmajor") return ask_rows(stream, 1);
  if (question == "mnmajor") return ask_columns(stream, false);
  if (question == "mnmajor_registers") return ask_columns(stream, true);
  if (question == "proxy") return ask_rows(stream, kRounds);
  if (question == "multicast") return ask_tma<2>(stream);
  if (question == "registers") return ask_registers(stream);
  if (question == "zero") return ask_zero(stream);
  return -1;
}

}  // namespace tributary::first_light
