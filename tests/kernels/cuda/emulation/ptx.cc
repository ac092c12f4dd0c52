// The functions of kernels/cuda/attend/ptx.h on emulated threads, fragment layouts as in the PTX
// ISA (sections on ldmatrix and on mma.m16n8k16).
#include "kernels/cuda/attend/ptx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/dtype.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::cuda::ptx {
namespace {

using simt::fault;
using simt::self;

// Arguments of a warp's collective, by lane.
template <typename Arguments, typename Act>
void collective(const char* what, Arguments& mine, const Act& act) {
  simt::Thread& thread = self();
  thread.block()
      .warp(thread.warp())
      .meet(what, thread.lane(), &mine, [&act](const std::vector<void*>& lanes) {
        std::array<Arguments*, simt::kWarpLanes> typed{};
        for (std::size_t lane = 0; lane < typed.size(); ++lane) {
          typed[lane] = static_cast<Arguments*>(lanes[lane]);
        }
        act(typed);
      });
}

template <typename T>
void store(std::uint32_t address, const T& value) {
  simt::Block& block = self().block();
  std::memcpy(block.shared(address, sizeof(T), sizeof(T)), &value, sizeof(T));
  if (block.wrote) block.wrote(address, sizeof(T));
}
template <typename T>
T load(std::uint32_t address) {
  T value{};
  std::memcpy(&value, self().block().shared(address, sizeof(T), sizeof(T)), sizeof(T));
  return value;
}

struct MatrixLoad {
  std::uint32_t row;
  std::uint32_t (*matrices)[4];
};

constexpr std::size_t kMatrixRows = 8;
constexpr std::size_t kRowBytes = 16;
constexpr std::uint32_t kBankGroups = 8;  // of 16 bytes: shared memory delivers 128 at once

void load_four(std::uint32_t row, std::uint32_t (&matrices)[4], bool transposed) {
  MatrixLoad mine{row, &matrices};
  const auto act = [transposed](const std::array<MatrixLoad*, simt::kWarpLanes>& lanes) {
    simt::Block& block = self().block();
    for (std::size_t matrix = 0; matrix < 4; ++matrix) {
      std::array<std::array<std::uint16_t, 8>, kMatrixRows> element{};
      std::uint32_t banks = 0;
      for (std::size_t r = 0; r < kMatrixRows; ++r) {
        const std::uint32_t address = lanes[matrix * kMatrixRows + r]->row;
        std::memcpy(element[r].data(), block.shared(address, kRowBytes, kRowBytes), kRowBytes);
        banks |= 1U << (address / kRowBytes % kBankGroups);
      }
      ++block.counters().matrix_loads;
      if (banks != (1U << kBankGroups) - 1) ++block.counters().matrix_conflicts;
      for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        const std::size_t major = lane / 4;
        const std::size_t minor = lane % 4 * 2;
        const std::uint32_t low = transposed ? element[minor][major] : element[major][minor];
        const std::uint32_t high =
            transposed ? element[minor + 1][major] : element[major][minor + 1];
        (*lanes[lane]->matrices)[matrix] = low | high << 16;
      }
    }
  };
  collective(transposed ? "ldmatrix.trans" : "ldmatrix", mine, act);
}

float half(std::uint32_t pair, std::size_t index) {
  return to_float(bf16{static_cast<std::uint16_t>(pair >> (16 * index))});
}

struct Product {
  float (*sum)[4];
  const std::uint32_t (*a)[4];
  std::uint32_t b[2];
};

void multiply_warp(const std::array<Product*, simt::kWarpLanes>& lanes) {
  ++self().block().counters().mma;
  std::array<std::array<float, 16>, 16> a{};  // [row][k]
  std::array<std::array<float, 8>, 16> b{};   // [k][column]
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const std::size_t group = lane / 4;
    const std::size_t pair = lane % 4 * 2;
    for (std::size_t i = 0; i < 2; ++i) {
      a[group][pair + i] = half((*lanes[lane]->a)[0], i);
      a[group + 8][pair + i] = half((*lanes[lane]->a)[1], i);
      a[group][pair + 8 + i] = half((*lanes[lane]->a)[2], i);
      a[group + 8][pair + 8 + i] = half((*lanes[lane]->a)[3], i);
      b[pair + i][group] = half(lanes[lane]->b[0], i);
      b[pair + 8 + i][group] = half(lanes[lane]->b[1], i);
    }
  }
  // The hardware's order of summation is not documented: here it is exact within one product.
  for (std::size_t row = 0; row < 16; ++row) {
    std::array<double, 8> sum{};
    for (std::size_t k = 0; k < 16; ++k) {
      for (std::size_t column = 0; column < 8; ++column) {
        sum[column] += static_cast<double>(a[row][k]) * b[k][column];
      }
    }
    for (std::size_t column = 0; column < 8; ++column) {
      float& c = (*lanes[row % 8 * 4 + column / 2]->sum)[row / 8 * 2 + column % 2];
      c = static_cast<float>(c + sum[column]);
    }
  }
}

struct Vote {
  bool so;
};

struct Shuffle {
  float value;
  unsigned bits;
  float result;
};

}  // namespace

unsigned thread() {
  return self().index();
}
unsigned block() {
  return self().block().index() % self().block().grid_x();
}
unsigned block_y() {
  return self().block().index() / self().block().grid_x();
}

void sync_block() {
  self().block().barrier(0).meet("bar.sync 0", 0, nullptr, nullptr);
}
void sync_warp() {
  simt::Thread& thread = self();
  thread.block().warp(thread.warp()).meet("bar.warp.sync", 0, nullptr, nullptr);
}

std::uint32_t shared_memory() {
  return 0;
}
void store_shared(std::uint32_t address, float value) {
  store(address, value);
}
void store_shared(std::uint32_t address, std::uint32_t value) {
  store(address, value);
}
void store_shared(std::uint32_t address, const Chunk& value) {
  store(address, value);
}
float load_shared(std::uint32_t address) {
  return load<float>(address);
}
Chunk load_shared_chunk(std::uint32_t address) {
  return load<Chunk>(address);
}

void copy_async(std::uint32_t shared, const void* global, std::uint32_t bytes) {
  if (bytes > kRowBytes) fault(fmt::format("cp.async of {} bytes", bytes));
  if (reinterpret_cast<std::uintptr_t>(global) % kRowBytes != 0) fault("cp.async: alignment");
  simt::Block& block = self().block();
  std::byte* to = block.shared(shared, kRowBytes, kRowBytes);
  // Real hardware may write at any time from now on.
  std::memset(to, 0xff, kRowBytes);
  self().defer([to, shared, global, bytes, &block] {
    std::memset(to, 0, kRowBytes);
    if (bytes > 0) std::memcpy(to, global, bytes);
    if (block.wrote) block.wrote(shared, kRowBytes);
    block.counters().copied_bytes += bytes;
  });
}
void commit_copies() {
  self().commit_group();
}
void wait_copies(int pending) {
  self().wait_groups(static_cast<std::size_t>(pending));
}

void load_matrices(std::uint32_t row, std::uint32_t (&matrices)[4]) {
  load_four(row, matrices, false);
}
void load_matrices_transposed(std::uint32_t row, std::uint32_t (&matrices)[4]) {
  load_four(row, matrices, true);
}
void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                  std::uint32_t b1) {
  Product mine{&sum, &a, {b0, b1}};
  collective("mma", mine, multiply_warp);
}

bool any_lane(bool so) {
  Vote mine{so};
  collective("vote.any", mine, [](const std::array<Vote*, simt::kWarpLanes>& lanes) {
    const bool any = std::ranges::any_of(lanes, [](const Vote* vote) { return vote->so; });
    for (Vote* vote : lanes) vote->so = any;
  });
  return mine.so;
}
float shuffle_xor(float value, unsigned bits) {
  Shuffle mine{value, bits, 0};
  collective("shfl.bfly", mine, [](const std::array<Shuffle*, simt::kWarpLanes>& lanes) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane]->result = lanes[lane ^ lanes[lane]->bits]->value;
    }
  });
  return mine.result;
}

std::uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
}

}  // namespace tributary::cuda::ptx
