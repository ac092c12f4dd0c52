// The asynchronous products of one emulated warpgroup (wgmma.mma_async, m64nNk16, bf16).
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::simt {

inline constexpr unsigned kWarpGroupThreads = 128;

/// Words of 4 bytes that threads have written to shared memory but not yet published to products
/// and tile copies (fence.proxy.async).
class UnpublishedWrites {
 public:
  void add(unsigned thread, std::uint32_t address, std::size_t bytes);
  void publish(unsigned thread);
  /// Faults if one of these bytes is unpublished.
  void check(std::uint32_t address, std::size_t bytes, const char* user) const;

 private:
  std::vector<unsigned> writer_;  // by word: 1 + thread, or 0
  std::map<unsigned, std::vector<std::uint32_t>> words_;
};

/// Shared memory as products read it.
struct OperandView {
  Block& block;
  const UnpublishedWrites& unpublished;
};

/// A thread's arguments of one instruction.
struct Product {
  float* sum = nullptr;                   // this thread's registers
  const std::uint32_t* a_part = nullptr;  // four of them, where a is in registers
  std::uint64_t a = 0, b = 0;             // descriptors
  bool accumulate = true;
};

class WarpGroupProducts {
 public:
  /// Called by every thread: wgmma.fence.
  void begin(unsigned thread) { begun_.set(thread); }
  /// Called by every thread before it issues. The first thread's view of the operands counts,
  /// because nothing makes a warp wait for the others. b is [columns x 16] (K-major), or [16 x
  /// columns] if `b_columns`.
  void read(OperandView view, const Product& product, std::size_t columns, bool b_columns);
  /// Called once, with the Product of all 128 threads.
  void issue(const std::vector<void*>& threads);
  void commit() { committed_ = operations_.size(); }
  /// Called once by each warp: computes its rows of all committed products and returns their sums.
  void finish(OperandView view, unsigned warp);

 private:
  struct Sum {
    std::size_t columns = 0;
    std::vector<float*> registers;  // of every thread
    std::vector<float> values;      // [64][columns]
  };
  struct Operation {
    std::size_t sum = 0;
    std::size_t columns = 0;
    Product product;
    bool b_columns = false;
    std::vector<float> a;  // [64][16], at issue
    std::vector<float> b;  // [16][columns], at issue
  };

  std::size_t sum_of(const std::vector<void*>& threads, std::size_t columns);
  static void multiply(const Operation& operation, Sum& sum, unsigned warp);

  std::bitset<kWarpGroupThreads> begun_;
  std::bitset<kWarpGroupThreads / kWarpLanes> finished_;  // warps
  std::size_t committed_ = 0;                             // of the operations
  std::optional<Operation> next_;                         // read, not yet issued by all
  std::vector<Sum> sums_;
  std::vector<Operation> operations_;
};

}  // namespace tributary::simt
