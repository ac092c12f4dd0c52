#include "kernels/cuda/device_peak.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda_backend.h"

namespace tributary {
namespace {

using cuda::check;

/// Long enough for the host to enqueue about twenty calls of attention in the meantime.
constexpr std::size_t kHeadStartBytes = std::size_t{1} << 30;
constexpr int kHeadStartCopies = 12;
constexpr auto kTimeout = std::chrono::seconds(60);

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// Enqueues a copy of the first half of `memory` to the second.
void copy_half(Backend& backend, const Buffer& memory) {
  const std::size_t bytes = memory.bytes() / 2;
  check(cudaMemcpyAsync(memory.data() + bytes, memory.data(), bytes, cudaMemcpyDeviceToDevice,
                        cuda_stream(backend)),
        "a copy");
}

/// Seconds of each run, after the device has got the work of `head_start`.
std::vector<double> times(Backend& backend, int runs, const std::function<void()>& head_start,
                          const std::function<void()>& enqueue) {
  cudaStream_t stream = cuda_stream(backend);
  std::vector<cuda::Event> events;
  for (int i = 0; i <= runs; ++i) events.push_back(cuda::make_timing_event());
  head_start();
  for (int i = 0; i <= runs; ++i) {
    if (i > 0) enqueue();
    check(cudaEventRecord(events[static_cast<std::size_t>(i)].get(), stream), "an event");
  }
  backend.synchronize(Deadline::after(kTimeout));
  std::vector<double> seconds;
  for (std::size_t i = 1; i < events.size(); ++i) {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, events[i - 1].get(), events[i].get()), "a time");
    seconds.push_back(milliseconds * 1e-3);
  }
  return seconds;
}

}  // namespace

double device_seconds(Backend& backend, int runs, const std::function<void()>& enqueue) {
  const auto memory = backend.allocate(2 * kHeadStartBytes);
  const auto head_start = [&] {
    for (int i = 0; i < kHeadStartCopies; ++i) copy_half(backend, *memory);
  };
  enqueue();
  enqueue();
  return median(times(backend, runs, head_start, enqueue));
}

double device_copy_bandwidth(Backend& backend) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;  // far more than the caches
  const auto memory = backend.allocate(2 * kBytes);
  const auto copy = [&] { copy_half(backend, *memory); };
  return 2.0 * kBytes / median(times(backend, 20, copy, copy));
}

double device_product_rate(Backend& backend) {
  constexpr std::int64_t kSize = 8192;
  constexpr std::size_t kWorkspace = std::size_t{64} << 20;
  constexpr std::size_t kMatrix = kSize * kSize * sizeof(bf16);
  std::vector<bf16> values(kSize * kSize);
  std::uint32_t state = 1;
  for (bf16& value : values) {  // power, and with it the clock, depends on the data: not zeros
    state = state * 1664525U + 1013904223U;
    value = to_bf16(static_cast<float>(state >> 8) * 0x1p-23F - 1.0F);
  }
  const auto a = backend.allocate(kMatrix);
  const auto b = backend.allocate(kMatrix);
  const auto c = backend.allocate(kMatrix);
  const auto workspace = backend.allocate(kWorkspace);
  backend.upload(a->data(), std::as_bytes(std::span(values)));
  backend.upload(b->data(), std::as_bytes(std::span(values)));

  const cuda::CublasLt& lt = cuda::cublaslt();
  cublasLtHandle_t raw_handle = nullptr;
  lt.check(lt.create(&raw_handle), "opening cuBLASLt");
  const cuda::CublasHandle handle(raw_handle);
  const cuda::Operation operation = cuda::make_operation();
  const cuda::Layout operand = cuda::make_layout(CUDA_R_16BF, kSize, kSize, 1);
  cublasLtMatmulPreference_t preference = nullptr;
  lt.check(lt.preference_create(&preference), "a preference");
  lt.check(lt.preference_set_attribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                       &kWorkspace, sizeof(kWorkspace)),
           "a preference's workspace");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  lt.check(lt.algo_get_heuristic(handle.get(), operation.get(), operand.get(), operand.get(),
                                 operand.get(), operand.get(), preference, 1, &found, &count),
           "choosing an algorithm");
  (void)lt.preference_destroy(preference);
  if (count == 0) {
    fail(ErrorCode::kInternal, "cuBLASLt has no algorithm for a bf16 product of {}", kSize);
  }

  const auto multiply = [&] {
    const float one = 1;
    const float zero = 0;
    lt.check(lt.matmul(handle.get(), operation.get(), &one, a->data(), operand.get(), b->data(),
                       operand.get(), &zero, c->data(), operand.get(), c->data(), operand.get(),
                       &found.algo, workspace->data(), kWorkspace, cuda_stream(backend)),
             "a product");
  };
  for (int i = 0; i < 20; ++i) multiply();
  return 2.0 * kSize * kSize * kSize / median(times(backend, 50, multiply, multiply));
}

}  // namespace tributary
