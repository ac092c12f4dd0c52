// A block of CUDA threads on one CPU thread: every thread is a fiber that runs until it waits for
// others (a barrier, a collective of its warp, a copy). The PTX functions that device code calls
// are implemented on top (ptx.cc beside this file), per the PTX ISA.
//
// It shows: index arithmetic, fragment layouts, masks, out-of-bounds accesses of shared memory,
// reads of shared memory that nobody wrote (it starts as NaN), copies that are read before they
// were waited for or that overwrite data that others still read (a destination is NaN from the
// copy's issue to its wait), missing barriers (threads run in random order) and deadlocks. It does
// not show: the memory model, the rounding of the tensor cores' sums, speed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tributary::simt {

inline constexpr unsigned kWarpLanes = 32;

/// Device code did something that would fail on hardware; the message names block, thread and
/// access.
class Fault : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct Launch {
  unsigned blocks = 1;
  unsigned blocks_y = 1;          // the grid is blocks x blocks_y
  unsigned threads = kWarpLanes;  // of a block, a multiple of 32
  std::size_t shared_bytes = 0;   // dynamic shared memory of a block
  unsigned cluster_blocks = 1;    // blocks that run at the same time and see each other
  std::uint32_t seed = 1;         // of the order in which threads run
  /// The threads never meet: each runs to its end without a fiber, which takes a tenth of the time.
  /// A kernel that waits all the same is a Fault.
  bool independent = false;
};

/// Events of a run.
struct Counters {
  std::uint64_t mma = 0;
  std::uint64_t matrix_loads = 0;      // groups of 8 rows that ldmatrix read
  std::uint64_t matrix_conflicts = 0;  // those whose rows share banks
  std::uint64_t copied_bytes = 0;      // by asynchronous copies, without zero fill
};

class Block;

/// `expected` threads meet; the last to come acts for all. Used for barriers and collectives.
class Rendezvous {
 public:
  explicit Rendezvous(unsigned expected = 0) : expected_(expected) {}

  /// Called by every participating thread with its own arguments. `act` is called once, with the
  /// arguments of all threads by order number; then all calls return. All must name the same
  /// `what`.
  void meet(const char* what, unsigned order, void* arguments,
            const std::function<void(const std::vector<void*>&)>& act);
  /// Counts, without waiting (bar.arrive).
  void arrive(const char* what);
  void expect(unsigned threads);

 private:
  void count(const char* what);

  unsigned expected_ = 0;
  unsigned arrived_ = 0;
  std::uint64_t generation_ = 0;
  const char* what_ = nullptr;
  std::vector<void*> arguments_;
};

/// One thread's state that lives as long as its fiber.
class Thread {
 public:
  Thread(Block& block, unsigned index);
  ~Thread();
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  [[nodiscard]] unsigned index() const noexcept { return index_; }
  [[nodiscard]] unsigned lane() const noexcept { return index_ % kWarpLanes; }
  [[nodiscard]] unsigned warp() const noexcept { return index_ / kWarpLanes; }
  [[nodiscard]] Block& block() const noexcept { return block_; }

  /// Lets others run until `ready` returns true. `what` names the wait if all threads wait forever.
  void wait(const char* what, std::function<bool()> ready);

  /// Asynchronous copies of this thread: an action that a later wait performs, in groups.
  void defer(std::function<void()> copy);
  void commit_group();
  /// Performs all groups but the newest `keep`.
  void wait_groups(std::size_t keep);

 private:
  friend class Scheduler;
  struct Fiber;

  Block& block_;
  unsigned index_;
  std::unique_ptr<Fiber> fiber_;
  const char* what_ = nullptr;
  std::function<bool()> ready_;
  std::vector<std::function<void()>> open_group_;
  std::vector<std::vector<std::function<void()>>> groups_;
};

/// Shared memory and meeting points of a block.
class Block {
 public:
  Block(const Launch& launch, unsigned index, Counters& counters);

  [[nodiscard]] unsigned index() const noexcept { return index_; }  // x fastest
  [[nodiscard]] unsigned grid_x() const noexcept { return grid_x_; }
  [[nodiscard]] unsigned threads() const noexcept { return threads_; }
  /// `bytes` bytes at a shared address; a Fault when they are outside or not aligned to
  /// `alignment`.
  [[nodiscard]] std::byte* shared(std::uint32_t address, std::size_t bytes, std::size_t alignment);
  [[nodiscard]] Rendezvous& warp(unsigned warp) { return warps_.at(warp); }
  [[nodiscard]] Rendezvous& warp_group(unsigned group) { return groups_.at(group); }
  [[nodiscard]] Rendezvous& barrier(unsigned id) { return barriers_.at(id); }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  /// The blocks of this block's cluster, by rank; and what they all meet at.
  std::vector<Block*> cluster;
  std::shared_ptr<Rendezvous> cluster_barrier;
  /// State that an extension keeps per block (barriers in shared memory, for example).
  std::shared_ptr<void> extension;
  /// Tells an extension that the running thread has written these bytes. May be empty.
  std::function<void(std::uint32_t address, std::size_t bytes)> wrote;

 private:
  unsigned index_;
  unsigned grid_x_;
  unsigned threads_;
  std::vector<std::byte> shared_;
  std::vector<Rendezvous> warps_;
  std::vector<Rendezvous> groups_;       // of 128 threads
  std::array<Rendezvous, 16> barriers_;  // 0 is the block's own
  Counters& counters_;
};

/// The thread whose fiber runs.
[[nodiscard]] Thread& self();
[[noreturn]] void fault(const std::string& what);

/// Runs `kernel` once in every thread of the grid, cluster after cluster. Throws what a thread
/// threw, or Fault when all threads wait for each other.
Counters run(const Launch& launch, const std::function<void()>& kernel);

}  // namespace tributary::simt
