// Helpers of the first questions: device memory, waits that end, numbers. They use the CUDA runtime
// alone.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace tributary::first_light {

constexpr auto kTimeout = std::chrono::seconds(8);

[[noreturn]] inline void give_up(const std::string& words) {
  std::printf("%s\n", words.c_str());
  static_cast<void>(std::fflush(stdout));
  std::_Exit(1);  // a destructor might wait for the device
}
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) give_up(std::string(what) + ": CUDA says " + cudaGetErrorString(code));
}
/// Called before that, if set.
inline void (*on_no_end)() = nullptr;
/// Ends the process where the device does not end in time.
inline void finish(cudaStream_t stream, const char* what) {
  const auto end = std::chrono::steady_clock::now() + kTimeout;
  for (;;) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaSuccess) return;
    if (code != cudaErrorNotReady) check(code, what);
    if (std::chrono::steady_clock::now() > end) {
      if (on_no_end != nullptr) on_no_end();
      give_up(std::string(what) + ": no end after 8 s\nsymptom: does not end");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

/// Device memory with the elements of a vector.
template <typename T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, cudaStream_t stream) : count_(values.size()) {
    check(cudaMalloc(&data_, std::max<std::size_t>(count_, 1) * sizeof(T)), "memory");
    check(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, stream),
          "sending");
  }
  ~OnDevice() { static_cast<void>(cudaFree(data_)); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  [[nodiscard]] T* get() const { return static_cast<T*>(data_); }
  void set(const std::vector<T>& values, cudaStream_t stream) {
    check(cudaMemcpyAsync(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice, stream),
          "sending");
  }
  [[nodiscard]] std::vector<T> fetch(cudaStream_t stream) const {
    std::vector<T> values(count_);
    check(cudaMemcpyAsync(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost, stream),
          "fetching");
    check(cudaStreamSynchronize(stream), "fetching");
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};

/// Close to normal, the same in every run.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : state_(seed) {}
  float operator()() {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state_ = state_ * 1664525U + 1013904223U;
      sum += static_cast<float>(state_ >> 8) * 0x1p-24F;
    }
    return (sum - 2.0F) * 1.7320508F;
  }

 private:
  std::uint32_t state_;
};

}  // namespace tributary::first_light
