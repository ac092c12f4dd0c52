// Compares the processor's tiles with the emulated ones on random operands, on all CPUs:
// `compare_tiles COUNT [--emulated]`. With --emulated the emulation takes the processor's part, to
// try the program on a machine without AMX. Status 0: all equal; 1: some differ; 2: wrong
// arguments; 3: no AMX (or no AVX-512) here.
#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cpu/tiles.h"
#include "tests/kernels/cpu/emulated_table.h"
#include "tests/kernels/cpu/emulated_tiles.h"
#include "tests/kernels/cpu/random_tiles.h"

namespace tributary::cpu {
namespace {

/// Tiles of one comparison: a thread asks for more when it is done.
constexpr std::uint64_t kPiece = 100'000;

int run(std::uint64_t count, bool emulated) {
  if (emulated_amx_table() == nullptr || (!emulated && !tiles_usable())) {
    fmt::print(stderr, "compare_tiles: no {} here: nothing was compared\n",
               emulated ? "AVX-512" : "AMX");
    return 3;
  }
  const std::uint64_t pieces = (count + kPiece - 1) / kPiece;
  // Other operands each time that it runs.
  const auto seed =
      static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> compared{0};
  std::atomic<std::uint64_t> different{0};
  std::atomic<int> kind{-1};
  std::atomic<std::uint64_t> failing{0};  // compare_tiles() of this seed finds a difference again
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::jthread> threads(std::max(1U, std::thread::hardware_concurrency()));
  for (std::jthread& thread : threads) {
    thread = std::jthread([&] {
      for (std::uint64_t piece = next++; piece < pieces; piece = next++) {
        const std::uint64_t tiles = std::min(kPiece, count - piece * kPiece);
        const TileComparison result =
            emulated ? compare_tiles<EmulatedTiles, EmulatedTiles>(seed + piece, tiles)
                     : compare_tiles<HardwareTiles, EmulatedTiles>(seed + piece, tiles);
        compared += result.compared;
        different += result.different;
        if (result.different == 0) continue;
        kind = result.first_kind;
        failing = seed + piece;
      }
    });
  }
  const std::size_t used = threads.size();
  threads.clear();  // joins
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  fmt::print(
      "{} random tiles on {}, {} threads, {:.1f} s, seed {}: {} differ{}\n", compared.load(),
      emulated ? "the emulation alone" : "the processor and the emulation", used, took.count(),
      seed, different.load(),
      different > 0 ? fmt::format(", of kind {}, with seed {}", kind.load(), failing.load()) : "");
  return different == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tributary::cpu

int main(int argc, char** argv) {
  const std::span arguments(argv, static_cast<std::size_t>(argc));
  std::uint64_t count = 0;
  const std::string_view text = argc > 1 ? arguments[1] : "";
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool emulated = argc == 3 && std::string_view(arguments[2]) == "--emulated";
  if (argc > 3 || (argc == 3 && !emulated) || parsed.ec != std::errc() ||
      parsed.ptr != text.data() + text.size() || count == 0) {
    fmt::print(stderr, "usage: compare_tiles COUNT [--emulated], COUNT from 1 on\n");
    return 2;
  }
  return tributary::cpu::run(count, emulated);
}
