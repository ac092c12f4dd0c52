// A fixed set of threads for parallel loops. An idle thread polls for the next loop for as long as
// waking it would take, because the operations of a layer follow each other closely, and then parks
// on a condition variable. Threads inherit the affinity of the thread that constructs the pool. If
// it has exactly one CPU for each thread, they are pinned, one to each.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace tributary::cpu {

class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread, so that 1 starts none and runs loops inline.
  ///
  /// If the constructing thread may use exactly `threads` CPUs, they belong to this pool: each of
  /// its own threads is pinned to one, and the caller of a loop moves to the free one. The caller
  /// is not pinned, because threads that it starts later would inherit a single CPU. With fewer
  /// CPUs the threads share them; with more, others (workers of the same machine, for example) may
  /// have the same mask and would be pinned to the same CPUs. Nothing is pinned in these two cases.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }
  /// The CPU of each thread, the caller's first; empty if nothing is pinned.
  [[nodiscard]] const std::vector<int>& cpus() const noexcept { return cpus_; }

  /// Calls body(unit, thread) once for every unit in [0, units), 0 <= thread < threads(), in any
  /// order and on any thread, at most one call per `thread` value at a time. Returns when all are
  /// done. An exception of a body ends the loop early and is rethrown here (the first, if several).
  /// One loop at a time: not to be called from two threads, nor from a body. Does not allocate.
  template <typename Body>
  void for_each(std::size_t units, const Body& body) {
    run(units, &body, [](const void* context, std::size_t unit, int thread) {
      (*static_cast<const Body*>(context))(unit, thread);
    });
  }

 private:
  using Invoke = void (*)(const void* context, std::size_t unit, int thread);

  void run(std::size_t units, const void* context, Invoke invoke);
  void claim_units(int thread) noexcept;
  void work(int thread);
  /// Moves the caller to its own CPU when it runs on one that a worker is pinned to. The worker
  /// cannot move, and the system takes milliseconds to notice that another CPU is idle.
  void step_aside() const noexcept;

  std::vector<int> cpus_;
  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable loop_started_;
  std::condition_variable worker_left_;
  // Under mutex_: the loop's number, whether workers may still join it, and how many are inside.
  // Members that are read without it are atomic.
  std::atomic<std::uint64_t> loop_{0};
  bool open_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<int> inside_{0};
  std::exception_ptr error_;
  // The loop itself, written before it opens and constant until the last worker has left.
  std::size_t units_ = 0;
  const void* context_ = nullptr;
  Invoke invoke_ = nullptr;
  std::atomic<std::size_t> next_unit_{0};
};

}  // namespace tributary::cpu
