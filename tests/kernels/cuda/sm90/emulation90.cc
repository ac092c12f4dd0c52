#include "tests/kernels/cuda/sm90/emulation90.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/sm90/products.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "tests/kernels/cuda/emulation/simt.h"
#include "tests/kernels/cuda/sm90/products90.h"

namespace tributary::simt {
namespace {

constexpr std::size_t kBoxRows = 64;
constexpr std::size_t kBoxRowBytes = 128;
constexpr std::size_t kChunkBytes = 16;

// A transaction barrier. Phases are counted; their parity is what threads name.
struct Transactions {
  unsigned arrivals = 0;  // a phase
  unsigned pending = 0;
  std::int64_t bytes = 0;  // announced but not yet arrived
  std::uint64_t phase = 0;
  std::vector<std::function<void()>> landings;

  void arrive(std::int64_t announced) {
    if (pending == 0) fault("mbarrier: more arrivals than the phase has");
    --pending;
    bytes += announced;
    finish();
  }
  void land() {
    for (const auto& landing : landings) landing();
    landings.clear();
    finish();
  }
  void finish() {
    if (pending > 0 || bytes != 0) return;
    pending = arrivals;
    ++phase;
  }
};

// The state of a block beyond simt::Block.
struct Extension {
  std::map<std::uint32_t, Transactions> barriers;  // by shared address
  std::map<unsigned, WarpGroupProducts> products;  // by warpgroup
  UnpublishedWrites unpublished;
  // Turns of the other threads that a warp's next products take: warps do not end together.
  std::map<unsigned, std::uint_fast32_t> delays;  // by warp
  std::minstd_rand random;
};

Extension& extension_of(Block& block) {
  if (!block.extension) {
    auto extension = std::make_shared<Extension>();
    block.wrote = [writes = &extension->unpublished](std::uint32_t address, std::size_t bytes) {
      writes->add(self().index(), address, bytes);
    };
    block.extension = extension;
  }
  return *static_cast<Extension*>(block.extension.get());
}

Transactions& barrier_of(Block& block, std::uint32_t address) {
  auto& barriers = extension_of(block).barriers;
  const auto found = barriers.find(address);
  if (found == barriers.end()) fault(fmt::format("no mbarrier at {}", address));
  return found->second;
}

OperandView view_of(Block& block) {
  return {block, extension_of(block).unpublished};
}

WarpGroupProducts& products_of(const Thread& thread) {
  return extension_of(thread.block()).products[thread.index() / kWarpGroupThreads];
}

void multiply(const char* what, Product mine, std::size_t columns, bool b_columns) {
  Thread& thread = self();
  WarpGroupProducts& products = products_of(thread);
  products.read(view_of(thread.block()), mine, columns, b_columns);
  thread.block()
      .warp_group(thread.index() / kWarpGroupThreads)
      .meet(what, thread.index() % kWarpGroupThreads, &mine,
            [&products](const std::vector<void*>& threads) { products.issue(threads); });
}

void check_box(const TileMap& map, std::int32_t column, std::int32_t row) {
  if (column < 0 || row < 0 || column + std::int64_t{kBoxRowBytes / 2} > map.columns ||
      row + std::int64_t{kBoxRows} > map.rows) {
    fault(fmt::format("tile copy from row {}, column {} of {} x {}", row, column, map.rows,
                      map.columns));
  }
}

void copy_box(Block& block, std::uint32_t to, std::uint32_t barrier, const TileMap& map,
              std::int32_t column, std::int32_t row) {
  std::byte* tile = block.shared(to, kBoxRows * kBoxRowBytes, 1024);
  extension_of(block).unpublished.check(to, kBoxRows * kBoxRowBytes, "a tile copy");
  std::memset(tile, 0xff, kBoxRows * kBoxRowBytes);
  Transactions& transactions = barrier_of(block, barrier);
  transactions.landings.emplace_back([tile, &transactions, map, column, row] {
    for (std::size_t r = 0; r < kBoxRows; ++r) {
      const std::byte* from =
          map.data + ((static_cast<std::size_t>(row) + r) * static_cast<std::size_t>(map.columns) +
                      static_cast<std::size_t>(column)) *
                         2;
      for (std::size_t chunk = 0; chunk < kBoxRowBytes / kChunkBytes; ++chunk) {
        std::memcpy(tile + r * kBoxRowBytes + (chunk ^ r % 8) * kChunkBytes,
                    from + chunk * kChunkBytes, kChunkBytes);
      }
    }
    transactions.bytes -= std::int64_t{kBoxRows * kBoxRowBytes};
  });
}

const TileMap& tile_map(const CUtensorMap_st* map) {
  return *reinterpret_cast<const TileMap*>(map);
}

void meet_named(std::uint32_t id, std::uint32_t threads, bool waits) {
  static constexpr std::array<const char*, 16> kNames = {
      "bar 0", "bar 1", "bar 2",  "bar 3",  "bar 4",  "bar 5",  "bar 6",  "bar 7",
      "bar 8", "bar 9", "bar 10", "bar 11", "bar 12", "bar 13", "bar 14", "bar 15"};
  Rendezvous& barrier = self().block().barrier(id);
  barrier.expect(threads);
  if (waits) {
    barrier.meet(kNames.at(id), 0, nullptr, nullptr);
  } else {
    barrier.arrive(kNames.at(id));
  }
}

}  // namespace
}  // namespace tributary::simt

namespace tributary::cuda::ptx {

using simt::self;

std::uint32_t tile_memory() {
  return 0;
}
void meet_at(std::uint32_t id, std::uint32_t threads) {
  simt::meet_named(id, threads, true);
}
void arrive_at(std::uint32_t id, std::uint32_t threads) {
  simt::meet_named(id, threads, false);
}

void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  simt::Block& block = self().block();
  (void)block.shared(barrier, 8, 8);
  simt::Transactions& transactions = simt::extension_of(block).barriers[barrier];
  transactions.arrivals = arrivals;
  transactions.pending = arrivals;
}
void publish_barriers() {}
void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  simt::barrier_of(self().block(), barrier).arrive(bytes);
}
void arrive_in_block(std::uint32_t barrier, std::uint32_t rank) {
  simt::barrier_of(*self().block().cluster.at(rank), barrier).arrive(0);
}
void wait_phase(std::uint32_t barrier, std::uint32_t parity) {
  simt::Transactions& transactions = simt::barrier_of(self().block(), barrier);
  const auto ended = [&transactions, parity] {
    if (transactions.phase % 2 == parity) transactions.land();
    return transactions.phase % 2 != parity;
  };
  if (!ended()) self().wait("an mbarrier's phase", ended);
}

std::uint32_t cluster_rank() {
  const simt::Block& block = self().block();
  return static_cast<std::uint32_t>(block.index() % block.cluster.size());
}
void sync_cluster() {
  self().block().cluster_barrier->meet("barrier.cluster", 0, nullptr, nullptr);
}
void publish_writes() {
  simt::extension_of(self().block()).unpublished.publish(self().index());
}

void prefetch_map(const CUtensorMap_st*) {}
std::uint64_t evict_first() {
  return 1;
}
void copy_tile(std::uint32_t to, std::uint32_t barrier, const CUtensorMap_st* map,
               std::int32_t column, std::int32_t row, std::uint64_t /*policy*/) {
  simt::check_box(simt::tile_map(map), column, row);
  simt::copy_box(self().block(), to, barrier, simt::tile_map(map), column, row);
}
void copy_tile_to_blocks(std::uint32_t to, std::uint32_t barrier, const CUtensorMap_st* map,
                         std::int32_t column, std::int32_t row, std::uint16_t blocks,
                         std::uint64_t /*policy*/) {
  simt::check_box(simt::tile_map(map), column, row);
  for (std::size_t rank = 0; rank < 16; ++rank) {
    if ((blocks >> rank & 1U) == 0) continue;
    simt::copy_box(*self().block().cluster.at(rank), to, barrier, simt::tile_map(map), column, row);
  }
}
void store_matrices(std::uint32_t row, const std::uint32_t (&matrices)[4]) {
  struct Rows {
    std::uint32_t mine;
    std::array<std::uint32_t, 4> target;  // of this lane's pairs of elements
  } rows{row, {}};
  const simt::Thread& thread = self();
  thread.block()
      .warp(thread.warp())
      .meet("stmatrix", thread.lane(), &rows, [](const std::vector<void*>& lanes) {
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
          for (std::size_t matrix = 0; matrix < 4; ++matrix) {
            static_cast<Rows*>(lanes[lane])->target[matrix] =
                static_cast<const Rows*>(lanes[matrix * 8 + lane / 4])->mine +
                static_cast<std::uint32_t>(lane % 4 * 4);
          }
        }
      });
  for (std::size_t matrix = 0; matrix < 4; ++matrix) {
    store_shared(rows.target[matrix], matrices[matrix]);
  }
}

void begin_products(float*, int) {
  simt::products_of(self()).begin(self().index() % simt::kWarpGroupThreads);
}
void commit_products() {
  simt::products_of(self()).commit();
}
void wait_products(float*, int) {
  constexpr unsigned kLongestDelay = 12;
  const unsigned warp = self().warp();
  simt::Extension& extension = simt::extension_of(self().block());
  for (auto turns = extension.delays[warp]; turns > 0; --turns) {
    self().wait("wgmma.wait_group", [] { return true; });
  }
  self().block().warp(warp).meet(
      "wgmma.wait_group", self().lane(), nullptr, [&extension, warp](const std::vector<void*>&) {
        extension.delays[warp] = extension.random() % kLongestDelay;
        simt::products_of(self()).finish(simt::view_of(self().block()), warp % 4);
      });
}

void multiply_rows(float (&sum)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
  simt::multiply("wgmma.m64n64k16", {sum, nullptr, a, b, accumulate}, 64, false);
}
void multiply_rows(float (&sum)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                   bool accumulate) {
  simt::multiply("wgmma.m64n64k16", {sum, a, 0, b, accumulate}, 64, false);
}
void multiply_columns(float (&sum)[128], std::uint64_t a, std::uint64_t b) {
  simt::multiply("wgmma.m64n256k16", {sum, nullptr, a, b, true}, 256, true);
}
void multiply_columns(float (&sum)[128], const std::uint32_t (&a)[4], std::uint64_t b) {
  simt::multiply("wgmma.m64n256k16", {sum, a, 0, b, true}, 256, true);
}

}  // namespace tributary::cuda::ptx
