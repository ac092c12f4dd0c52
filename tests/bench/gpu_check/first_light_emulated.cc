// Runs the questions of first_light.cu that need no real GPU on the emulated device. This shows
// that they are right, and that bench/gpu_check.sh reports errors, which the environment plants.
// TRIBUTARY_PLANT=wrong: a kernel that leaves a wrong number; hang: one that never ends; crash,
// skip: a process that does.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/base/error.h"
#include "kernels/cuda/sm90/tensor_map.h"
#include "tests/gpu/first_light_cases.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"

namespace tributary::first_light {
namespace {

std::string_view planted() {
  const char* value = std::getenv("TRIBUTARY_PLANT");  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

cudaError_t attend(const cuda::AttendLaunch& launch, cudaStream_t stream) {
  if (planted() == "crash") std::abort();
  if (planted() == "skip") std::_Exit(77);
  if (planted() == "hang") {
    // Longer than the limit of any check; a kernel that is asked to end does not hear it.
    std::this_thread::sleep_for(std::chrono::minutes(10));
  }
  cuda::enqueue(launch, stream);
  if (planted() == "wrong") {
    return test::enqueue_on(stream, [states = launch.states] { states[kRank / 2] += 1; });
  }
  return cudaSuccess;
}

cudaError_t merge(const cuda::MergeLaunch& launch, cudaStream_t stream) {
  cuda::enqueue(launch, stream);
  return cudaSuccess;
}

bool make_map(const std::byte* cache, std::int64_t rows, void* map) {
  CacheLayout layout;
  layout.layers = 1;
  layout.pages = static_cast<int>(rows / kPageTokens);
  layout.kv_lora_rank = kRank;
  layout.qk_rope_head_dim = kLatent - kRank;
  const cuda::CacheMap made(cache, layout);
  std::memcpy(map, made.get(), 128);
  return true;
}

}  // namespace
}  // namespace tributary::first_light

int main(int argc, char** argv) {
  using namespace tributary;  // NOLINT(google-build-using-namespace)
  if (argc != 2) {
    std::printf("usage: first_light QUESTION\n");
    return 2;
  }
  try {
    const test::EmulatedHopper hopper;
    cuda::load_attend({.compute_capability = 90, .multiprocessors = 4, .shared_bytes = 227 << 10});
    const int answer = first_light::ask_kernel(
        {first_light::attend, first_light::merge, first_light::make_map, 2}, argv[1]);
    if (answer < 0) std::printf("no question %s\n", argv[1]);
    return answer < 0 ? 2 : answer;
  } catch (const std::exception& error) {
    std::printf("first_light: %s\n", error.what());
    return 1;
  }
}
