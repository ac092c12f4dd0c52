// Parallel loops: units are claimed from an atomic counter, so that a slow thread takes fewer.
#include "kernels/cpu/thread_pool.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <utility>

#include "core/base/look_for.h"

namespace tributary::cpu {
namespace {

#if defined(__linux__)
/// The CPUs that the calling thread may use; empty if the system does not say.
std::vector<int> usable_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &usable)) cpus.push_back(cpu);
  }
  return cpus;
}

/// Affects only the speed: if the system refuses, the calling thread's affinity stays unchanged.
void keep_to(int cpu) noexcept {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(cpu), &one);
  (void)sched_setaffinity(0, sizeof one, &one);
}
#else
std::vector<int> usable_cpus() {
  return {};
}
void keep_to(int /*cpu*/) noexcept {}
#endif

}  // namespace

ThreadPool::ThreadPool(int threads) {
  if (threads > 1) {
    cpus_ = usable_cpus();
    if (cpus_.size() != static_cast<std::size_t>(threads)) cpus_.clear();
  }
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    // The system refused a thread: the existing ones must end before the pool's members.
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    loop_started_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  loop_started_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(std::size_t units, const void* context, Invoke invoke) {
  if (workers_.empty() || units <= 1) {
    for (std::size_t unit = 0; unit < units; ++unit) invoke(context, unit, 0);
    return;
  }
  step_aside();
  {
    const std::scoped_lock lock(mutex_);
    units_ = units;
    context_ = context;
    invoke_ = invoke;
    next_unit_.store(0, std::memory_order_relaxed);
    ++loop_;
    open_ = true;
  }
  loop_started_.notify_all();
  claim_units(0);
  // A worker that wakes up now finds the loop closed and sleeps again: the caller waits only for
  // those inside the loop.
  {
    const std::scoped_lock lock(mutex_);
    open_ = false;
  }
  look_for([this] { return inside_ == 0; });
  std::unique_lock lock(mutex_);
  worker_left_.wait(lock, [this] { return inside_ == 0; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::claim_units(int thread) noexcept {
  for (;;) {
    const std::size_t unit = next_unit_.fetch_add(1, std::memory_order_relaxed);
    if (unit >= units_) return;
    try {
      invoke_(context_, unit, thread);
    } catch (...) {
      next_unit_.store(units_, std::memory_order_relaxed);
      const std::scoped_lock lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
}

void ThreadPool::work(int thread) {
  if (!cpus_.empty()) keep_to(cpus_[static_cast<std::size_t>(thread)]);
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    loop_started_.wait(lock, [&] { return stop_ || (open_ && loop_ != seen); });
    if (stop_) return;
    seen = loop_;
    ++inside_;
    lock.unlock();
    claim_units(thread);
    lock.lock();
    if (--inside_ == 0) worker_left_.notify_one();
    lock.unlock();
    look_for([&] { return loop_ != seen || stop_; });
    lock.lock();
  }
}

void ThreadPool::step_aside() const noexcept {
#if defined(__linux__)
  if (cpus_.empty()) return;
  const int here = sched_getcpu();
  if (std::find(cpus_.begin() + 1, cpus_.end(), here) == cpus_.end()) return;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  if (!CPU_ISSET(static_cast<std::size_t>(cpus_.front()), &usable)) return;
  keep_to(cpus_.front());
  (void)sched_setaffinity(0, sizeof usable, &usable);
#endif
}

}  // namespace tributary::cpu
