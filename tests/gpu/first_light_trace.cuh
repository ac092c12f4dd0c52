// A debug build (TRIBUTARY_WAIT_TRACE) of the first questions: every warp of the many-rows kernel
// writes where it waits into page-locked memory that is a file in memory, kTraceFile (Linux lets no
// device write into a file on a disk). The file can be read after the process was killed. Included
// once, after the kernels.
#pragma once

#include <cuda_runtime.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>

#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "tests/gpu/first_light_device.h"

namespace tributary::first_light {

constexpr int kTraceWarps = cuda::sm90::kThreads / 32;
constexpr const char* kTraceFile = "/dev/shm/first_light.trace";
constexpr int kTraceBlocks = 132;
constexpr std::size_t kTraceBytes = std::size_t{kTraceBlocks} * kTraceWarps * sizeof(std::uint64_t);

// A word: number of the wait << 32 | kind << 30 | parity << 29 | what.
static __device__ volatile std::uint64_t* trace_words;
static __device__ std::uint32_t trace_counts[kTraceBlocks * kTraceWarps];

inline const std::uint64_t* trace_on_host = nullptr;

inline void print_trace() {
  namespace sm90 = cuda::sm90;
  std::printf("where each warp waited last (block, warp: place, number of the wait):\n");
  for (int i = 0; i < kTraceBlocks * kTraceWarps; ++i) {
    const std::uint64_t word = trace_on_host[i];
    if (word == 0) continue;
    const auto kind = static_cast<std::uint32_t>(word >> 30 & 3);
    const auto what = static_cast<std::uint32_t>(word & 0x1fffffff);
    std::printf("  %3d %2d: ", i / kTraceWarps, i % kTraceWarps);
    if (kind == cuda::ptx::kWaitOfPhase) {
      // The base of shared memory is a multiple of 1024, more than all barriers take.
      const std::uint32_t barrier = (what - sm90::kFullAt) % 1024 / 8;
      const std::uint32_t each = sm90::kBuffers * sm90::kTiles;
      std::printf("%s, buffer %u, tile %u, parity %u", barrier < each ? "full" : "empty",
                  barrier % each / sm90::kTiles, barrier % sm90::kTiles,
                  static_cast<unsigned>(word >> 29 & 1));
    } else if (kind == cuda::ptx::kWaitOfThreads) {
      std::printf("barrier %u of threads", what);
    } else {
      std::printf("the cluster");
    }
    std::printf(", %u\n", static_cast<unsigned>(word >> 32));
  }
}

inline void start_trace() {
  const int file = open(kTraceFile, O_RDWR | O_CREAT | O_TRUNC, 0644);
  void* memory = MAP_FAILED;
  if (file >= 0 && ftruncate(file, kTraceBytes) == 0) {
    memory = mmap(nullptr, kTraceBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) give_up("/dev/shm/first_light.trace cannot be written");
  check(cudaHostRegister(memory, kTraceBytes, cudaHostRegisterMapped), "page-locking the trace");
  void* device = nullptr;
  check(cudaHostGetDevicePointer(&device, memory, 0), "the trace on the device");
  check(cudaMemcpyToSymbol(trace_words, &device, sizeof(device)), "the trace on the device");
  trace_on_host = static_cast<const std::uint64_t*>(memory);
  on_no_end = print_trace;
}

}  // namespace tributary::first_light

namespace tributary::cuda::ptx {

TRIBUTARY_DEVICE void note_wait(std::uint32_t kind, std::uint32_t what, std::uint32_t parity) {
  if (thread() % 32 != 0 || block() >= first_light::kTraceBlocks) return;
  volatile std::uint64_t* const words = first_light::trace_words;
  if (words == nullptr) return;
  const unsigned at = block() * first_light::kTraceWarps + thread() / 32;
  const std::uint64_t count = ++first_light::trace_counts[at];
  words[at] = count << 32 | kind << 30 | parity << 29 | (what & 0x1fffffffU);
}

}  // namespace tributary::cuda::ptx
