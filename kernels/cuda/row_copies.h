// Internal to kernels/cuda: rows to and from the cache, from any thread, on a stream and through
// page-locked memory of their own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/base/support.h"

namespace tributary::cuda {

/// Deadline of waits for which the interface has none: far above any copy, below a pool's
/// deadlines.
inline constexpr auto kCopyTimeout = std::chrono::seconds(60);

class RowCopies {
 public:
  RowCopies() : stream_(make_stream()) {}

  void store(std::byte* to, std::span<const std::byte> rows) {
    const std::lock_guard lock(mutex_);
    reserve(rows.size());
    std::copy(rows.begin(), rows.end(), memory_.get());
    check(cudaMemcpyAsync(to, memory_.get(), rows.size(), cudaMemcpyHostToDevice, stream_.get()),
          "storing rows");
    wait("storing rows");
  }
  void load(std::span<std::byte> rows, const std::byte* from) {
    const std::lock_guard lock(mutex_);
    reserve(rows.size());
    check(cudaMemcpyAsync(memory_.get(), from, rows.size(), cudaMemcpyDeviceToHost, stream_.get()),
          "loading rows");
    wait("loading rows");
    std::copy_n(memory_.get(), rows.size(), rows.begin());
  }

 private:
  void reserve(std::size_t bytes) {
    if (bytes <= bytes_) return;
    memory_ = allocate_pinned(bytes);
    bytes_ = bytes;
  }

  /// A copy that missed its deadline may still use the memory, so no other copy gets it.
  void wait(const char* what) {
    const Status status =
        status_of([&] { wait_for(stream_.get(), Deadline::after(kCopyTimeout), what); });
    if (status.ok()) return;
    given_up_.push_back(std::move(memory_));
    bytes_ = 0;
    status.throw_if_error();
  }

  std::mutex mutex_;
  Stream stream_;
  Pinned memory_;
  std::vector<Pinned> given_up_;
  std::size_t bytes_ = 0;  // at most a page, which is what the interface hands over at once
};

}  // namespace tributary::cuda
