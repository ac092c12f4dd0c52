#include "tests/kernels/cuda/emulation/simt.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cstring>
#include <exception>
#include <random>
#include <utility>

// AddressSanitizer must be told of every switch of stacks. GCC defines a macro when it is on, clang
// has a feature test.
#if defined(__SANITIZE_ADDRESS__)
#define TRIBUTARY_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TRIBUTARY_ADDRESS_SANITIZER
#endif
#endif
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace tributary::simt {
namespace {

namespace context = boost::context;

// Kernels keep fragments in arrays of a few KiB; AddressSanitizer's red zones multiply that.
constexpr std::size_t kStackBytes = std::size_t{256} << 10;
constexpr unsigned kWarpGroupLanes = 128;

thread_local Thread* running = nullptr;

/// Ends a thread whose run has failed elsewhere.
struct Cancelled {};

}  // namespace

// Two contexts: the thread's own, while it waits, and the scheduler's, while the thread runs.
struct Thread::Fiber {
  context::fiber thread;
  context::fiber scheduler;
  std::exception_ptr error;
  bool done = false;
  bool cancelled = false;
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
  const void* stack = nullptr;  // of the thread
  std::size_t stack_bytes = 0;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  void* thread_fake = nullptr;  // AddressSanitizer's, of the side that does not run
  void* scheduler_fake = nullptr;
#endif

  void leave_scheduler() {
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(&scheduler_fake, stack, stack_bytes);
#endif
  }
  void enter_scheduler() {
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
  }
  void leave_thread([[maybe_unused]] bool for_good) {
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &thread_fake, scheduler_stack,
                                   scheduler_stack_bytes);
#endif
  }
  void enter_thread() {
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(thread_fake, &scheduler_stack, &scheduler_stack_bytes);
#endif
  }
};

void Rendezvous::expect(unsigned threads) {
  if (expected_ != 0 && expected_ != threads && arrived_ != 0) {
    fault(fmt::format("{} threads at a barrier of {}", threads, expected_));
  }
  expected_ = threads;
}

void Rendezvous::count(const char* what) {
  if (arrived_ == 0) what_ = what;
  if (what_ != what && std::strcmp(what_, what) != 0) {
    fault(fmt::format("{} where others do {}", what, what_));
  }
  ++arrived_;
}

void Rendezvous::arrive(const char* what) {
  count(what);
  if (arrived_ < expected_) return;
  arrived_ = 0;
  ++generation_;
}

void Rendezvous::meet(const char* what, unsigned order, void* arguments,
                      const std::function<void(const std::vector<void*>&)>& act) {
  count(what);
  arguments_.resize(expected_);
  if (act) arguments_.at(order) = arguments;
  if (arrived_ == expected_) {
    if (act) act(arguments_);
    arrived_ = 0;
    ++generation_;
    return;
  }
  const std::uint64_t mine = generation_;
  self().wait(what, [this, mine] { return generation_ != mine; });
}

Thread::Thread(Block& block, unsigned index) : block_(block), index_(index) {}
Thread::~Thread() = default;

void Thread::wait(const char* what, std::function<bool()> ready) {
  if (fiber_ == nullptr) fault(fmt::format("{} of threads that are to be independent", what));
  what_ = what;
  ready_ = std::move(ready);
  fiber_->leave_thread(false);
  fiber_->scheduler = std::move(fiber_->scheduler).resume();
  fiber_->enter_thread();
  if (fiber_->cancelled) throw Cancelled();
}

void Thread::defer(std::function<void()> copy) {
  open_group_.push_back(std::move(copy));
}

void Thread::commit_group() {
  groups_.push_back(std::exchange(open_group_, {}));
}

void Thread::wait_groups(std::size_t keep) {
  if (groups_.size() <= keep) return;
  const auto end = groups_.end() - static_cast<std::ptrdiff_t>(keep);
  for (auto group = groups_.begin(); group != end; ++group) {
    for (const auto& copy : *group) copy();
  }
  groups_.erase(groups_.begin(), end);
}

Block::Block(const Launch& launch, unsigned index, Counters& counters)
    : index_(index),
      grid_x_(launch.blocks),
      threads_(launch.threads),
      shared_(launch.shared_bytes, std::byte{0xff}),
      warps_(launch.threads / kWarpLanes, Rendezvous(kWarpLanes)),
      groups_(launch.threads / kWarpGroupLanes, Rendezvous(kWarpGroupLanes)),
      counters_(counters) {
  barriers_[0] = Rendezvous(launch.threads);
}

std::byte* Block::shared(std::uint32_t address, std::size_t bytes, std::size_t alignment) {
  if (address % alignment != 0 || address + bytes > shared_.size()) {
    fault(fmt::format("{} bytes of shared memory at {}, aligned to {}: there are {}", bytes,
                      address, alignment, shared_.size()));
  }
  return shared_.data() + address;
}

Thread& self() {
  return *running;
}

void fault(const std::string& what) {
  throw Fault(running == nullptr ? what
                                 : fmt::format("block {}, thread {}: {}", self().block().index(),
                                               self().index(), what));
}

// Runs the threads of one cluster, in random order, until all are done.
class Scheduler {
 public:
  Scheduler(const Launch& launch, unsigned first_block, Counters& counters,
            const std::function<void()>& kernel)
      : random_(launch.seed + first_block) {
    auto barrier = std::make_shared<Rendezvous>(launch.cluster_blocks * launch.threads);
    std::vector<Block*> cluster;
    for (unsigned b = 0; b < launch.cluster_blocks; ++b) {
      blocks_.push_back(std::make_unique<Block>(launch, first_block + b, counters));
      cluster.push_back(blocks_.back().get());
    }
    for (Block* block : cluster) {
      block->cluster = cluster;
      block->cluster_barrier = barrier;
      for (unsigned t = 0; t < launch.threads; ++t) {
        threads_.push_back(std::make_unique<Thread>(*block, t));
        start(*threads_.back(), kernel);
      }
    }
  }

  // After a failure the other threads unwind on their own stacks.
  ~Scheduler() {
    for (const auto& thread : threads_) {
      if (thread->fiber_->done) continue;
      thread->fiber_->cancelled = true;
      resume(*thread);
    }
  }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  void run() {
    std::vector<Thread*> waiting;
    for (const auto& thread : threads_) waiting.push_back(thread.get());
    while (!waiting.empty()) {
      // Any order is legal; shuffling every time would take longer than what the threads do.
      if (random_() % 16 == 0) std::ranges::shuffle(waiting, random_);
      bool progress = false;
      for (Thread* thread : waiting) {
        if (thread->ready_ && !thread->ready_()) continue;
        progress = true;
        resume(*thread);
        if (thread->fiber_->error) std::rethrow_exception(thread->fiber_->error);
      }
      if (!progress) deadlock(*waiting.front());
      std::erase_if(waiting, [](const Thread* thread) { return thread->fiber_->done; });
    }
  }

 private:
  static void start(Thread& thread, const std::function<void()>& kernel) {
    thread.fiber_ = std::make_unique<Thread::Fiber>();
    Thread::Fiber& fiber = *thread.fiber_;
    // Kept from block to block: fresh memory from the system would take longer than most threads.
    constexpr std::size_t kStacksAtOnce = 32;
    thread_local context::pooled_fixedsize_stack allocator(kStackBytes, kStacksAtOnce,
                                                           kStacksAtOnce);
    const context::stack_context stack = allocator.allocate();
#if defined(TRIBUTARY_ADDRESS_SANITIZER)
    // The frames of a cancelled thread may still mark this memory as out of bounds.
    __asan_unpoison_memory_region(static_cast<std::byte*>(stack.sp) - stack.size, stack.size);
    fiber.stack = static_cast<std::byte*>(stack.sp) - stack.size;
    fiber.stack_bytes = stack.size;
#endif
    const auto body = [&fiber, &kernel](context::fiber&& scheduler) {
      fiber.scheduler = std::move(scheduler);
      fiber.enter_thread();
      try {
        if (!fiber.cancelled) kernel();
      } catch (const std::exception&) {
        fiber.error = std::current_exception();
      } catch (const Cancelled&) {  // it has ended, as requested
      }
      fiber.done = true;
      fiber.leave_thread(true);
      return std::move(fiber.scheduler);
    };
    fiber.thread = context::fiber(
        std::allocator_arg, context::preallocated(stack.sp, stack.size, stack), allocator, body);
  }

  static void resume(Thread& thread) {
    thread.ready_ = nullptr;
    running = &thread;
    thread.fiber_->leave_scheduler();
    thread.fiber_->thread = std::move(thread.fiber_->thread).resume();
    thread.fiber_->enter_scheduler();
    running = nullptr;
  }

  [[noreturn]] static void deadlock(const Thread& thread) {
    fault(fmt::format("deadlock: block {}, thread {} and others wait for {}",
                      thread.block().index(), thread.index(), thread.what_));
  }

  std::mt19937 random_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Thread>> threads_;
};

namespace {

void run_independent(const Launch& launch, Counters& counters,
                     const std::function<void()>& kernel) {
  struct Leave {
    ~Leave() { running = nullptr; }
  } leave;
  for (unsigned b = 0; b < launch.blocks * launch.blocks_y; ++b) {
    Block block(launch, b, counters);
    for (unsigned t = 0; t < launch.threads; ++t) {
      Thread thread(block, t);
      running = &thread;
      kernel();
    }
  }
}

}  // namespace

Counters run(const Launch& launch, const std::function<void()>& kernel) {
  if (launch.threads == 0 || launch.threads % kWarpLanes != 0 ||
      launch.blocks % launch.cluster_blocks != 0) {
    fault(fmt::format("{} blocks in clusters of {}, {} threads each", launch.blocks,
                      launch.cluster_blocks, launch.threads));
  }
  Counters counters;
  if (launch.independent) {
    run_independent(launch, counters, kernel);
    return counters;
  }
  for (unsigned block = 0; block < launch.blocks * launch.blocks_y;
       block += launch.cluster_blocks) {
    Scheduler(launch, block, counters, kernel).run();
  }
  return counters;
}

}  // namespace tributary::simt
