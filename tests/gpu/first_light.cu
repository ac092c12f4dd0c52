// The first questions to a GPU, one per process: the assumptions of the many-rows kernel about the
// machine, and every kernel against float64. It uses the kernels' own headers and the CUDA runtime,
// nothing else. Build it with nvcc alone, in the folder above tests/, as one line:
//   nvcc -std=c++20 -O2 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr
//     -I. tests/gpu/first_light.cu -o first_light
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

// The kernels themselves, and how they are launched.
#include "kernels/cuda/attend/attend.cu"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/many_rows.cu"
#include "tests/gpu/first_light_cases.h"
#include "tests/gpu/first_light_probes.cuh"
#if defined(TRIBUTARY_WAIT_TRACE)
#include "tests/gpu/first_light_trace.cuh"
#endif

namespace tributary {

// Which core/model/row_format.cc has, with what nvcc cannot compile. All rows here are bf16.
std::optional<DType> plain_elements(RowFormat /*format*/) noexcept {
  return DType::kBF16;
}

}  // namespace tributary

namespace tributary::first_light {
namespace {

constexpr int kSkipped = 77;

/// As kernels/cuda/sm90/many_rows_launch.cc does, whose error messages nvcc cannot compile.
cudaError_t launch_many(const cuda::AttendLaunch& launch, cudaStream_t stream) {
  const int blocks = launch.unit_rows / cuda::sm90::kRows;
  const void* kernel =
      cuda::sm90::many_rows_kernel({.blocks = blocks, .selected = launch.selected.most != 0});
  const cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(cuda::sm90::kSharedBytes));
  if (code != cudaSuccess) return code;
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config =
      cluster_launch(launch.parts * blocks, cuda::sm90::kThreads, cuda::sm90::kSharedBytes, blocks,
                     stream, &cluster);
  void* arguments[] = {const_cast<cuda::AttendLaunch*>(&launch),
                       const_cast<CUtensorMap_st*>(launch.cache_map)};
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

cudaError_t attend(const cuda::AttendLaunch& launch, cudaStream_t stream) {
  switch (launch.kernel) {
    case cuda::AttendKernel::kGeneric:
      return cuda::launch_generic(launch, stream);
    case cuda::AttendKernel::kFewRows:
      return cuda::launch_few_rows(launch, stream);
    case cuda::AttendKernel::kManyRows:
      return launch_many(launch, stream);
  }
  return cudaErrorInvalidValue;
}

/// Keeps a multiprocessor: with its shared memory no block of the many-rows kernel fits beside it.
__global__ void spin(std::uint64_t nanoseconds) {
  std::uint64_t begin = 0;
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

/// As attend, while 16 blocks of a stream of high priority, as an exchange's would be, keep as many
/// multiprocessors for 5 ms.
cudaError_t attend_beside(const cuda::AttendLaunch& launch, cudaStream_t stream) {
  constexpr std::uint64_t kSpin = 5'000'000;
  static const cudaStream_t high = [] {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, greatest), "a stream");
    return made;
  }();
  check(cudaStreamSynchronize(high), "spinning blocks");
  spin<<<16, 32, 32 << 10, high>>>(kSpin);
  const cudaError_t code = cudaGetLastError();
  return code != cudaSuccess ? code : attend(launch, stream);
}

/// The many-rows kernel with two blocks a cluster: one on every pair of multiprocessors.
int ask_occupancy(int multiprocessors) {
  const void* kernel = cuda::sm90::many_rows_kernel({.blocks = 2});
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(cuda::sm90::kSharedBytes)),
        "shared memory");
  cudaLaunchAttribute cluster{};
  const cudaLaunchConfig_t config = cluster_launch(multiprocessors, cuda::sm90::kThreads,
                                                   cuda::sm90::kSharedBytes, 2, nullptr, &cluster);
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "occupancy");
  const bool all = clusters == multiprocessors / 2;
  std::printf("%d clusters of two are resident, %d multiprocessors\n", clusters, multiprocessors);
  if (!all) std::printf("symptom: clusters wait for each other\n");
  return all ? 0 : 1;
}

int answer(const std::string& question, int runs) {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) {
    std::printf("no usable GPU\n");
    return kSkipped;
  }
  std::printf("%s, sm_%d%d, %d multiprocessors\n", device.name, device.major, device.minor,
              device.multiProcessorCount);
  if (device.major * 10 + device.minor != 90) {
    std::printf("built for sm_90a\n");
    return kSkipped;
  }
#if defined(TRIBUTARY_WAIT_TRACE)
  start_trace();
#endif
  if (question == "occupancy") return ask_occupancy(device.multiProcessorCount);
  if (question == "beside")
    return ask_kernel({attend_beside, cuda::launch_merge, make_map, runs}, "many2");
  const int probed = ask_probe(question);
  return probed >= 0 ? probed : ask_kernel({attend, cuda::launch_merge, make_map, runs}, question);
}

}  // namespace
}  // namespace tributary::first_light

int main(int argc, char** argv) {
  const bool help = argc == 2 && std::strcmp(argv[1], "--help") == 0;
  if (argc < 2 || argc > 3 || help) {
    std::printf("usage: first_light QUESTION [RUNS of every case, 20]\n");
    return help ? 0 : 2;
  }
  const int runs = argc == 3 ? std::stoi(argv[2]) : 20;
  const int status = tributary::first_light::answer(argv[1], runs);
  if (status < 0) std::printf("no question %s\n", argv[1]);
  return status < 0 ? 2 : status;
}
