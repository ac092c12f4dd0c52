#include "kernels/cpu/tiles.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/amx_tiles.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {
namespace {

// arch_prctl(2), asm/prctl.h: a process asks for the state of a feature that is large, and may then
// use it in all of its threads.
constexpr long kRequestPermission = 0x1023;
constexpr long kTileData = 18;

bool has_tiles() {
  constexpr unsigned kBf16 = 1U << 22;  // CPUID 7.0, EDX
  constexpr unsigned kTile = 1U << 24;
  constexpr unsigned kDotProducts = 1U << 5;  // CPUID 7.1, EAX: AVX512_BF16, for pair_of
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) {
    return false;
  }
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kDotProducts) != 0;
}

// Four sums: a product takes 52 cycles and begins every 16.
void multiply(std::size_t rounds) {
  HardwareTiles::configure();
  for (std::size_t round = 0; round < rounds; ++round) {
    HardwareTiles::add_dot<0, 4, 6>();
    HardwareTiles::add_dot<1, 4, 7>();
    HardwareTiles::add_dot<2, 5, 6>();
    HardwareTiles::add_dot<3, 5, 7>();
    HardwareTiles::add_dot<0, 4, 6>();
    HardwareTiles::add_dot<1, 4, 7>();
    HardwareTiles::add_dot<2, 5, 6>();
    HardwareTiles::add_dot<3, 5, 7>();
  }
  HardwareTiles::release();
}

}  // namespace
}  // namespace tributary::cpu
TRIBUTARY_AVX512_END

namespace tributary::cpu {

bool tiles_usable() {
  static const bool usable =
      has_tiles() && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return usable;
}

void multiply_tiles(std::size_t rounds) {
  multiply(rounds);
}

}  // namespace tributary::cpu

#else

namespace tributary::cpu {

bool tiles_usable() {
  return false;
}
void multiply_tiles(std::size_t /*rounds*/) {}

}  // namespace tributary::cpu

#endif
