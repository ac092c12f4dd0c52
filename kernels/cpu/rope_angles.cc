#include "kernels/cpu/rope_angles.h"

#include <algorithm>
#include <cmath>

#include "core/base/ceil_div.h"

namespace tributary::cpu {

void RopeAngles::prepare(ThreadPool& pool, std::span<const std::int64_t> positions,
                         std::span<const double> frequencies) {
  // Bits of the frequencies are compared as numbers: 0 and -0 have the same angles but for the sign
  // of a zero sine.
  if (std::ranges::equal(positions, positions_) && std::ranges::equal(frequencies, frequencies_) &&
      std::ranges::none_of(frequencies, [](double f) { return f == 0; })) {
    return;
  }
  positions_.assign(positions.begin(), positions.end());
  frequencies_.assign(frequencies.begin(), frequencies.end());
  const std::size_t pairs = frequencies_.size();
  angles_.resize(positions_.size() * 4 * pairs);
  // About a microsecond per token, which is worth waking a thread.
  constexpr std::size_t kTokens = 16;
  pool.for_each(ceil_div(positions_.size(), kTokens), [&](std::size_t block, int /*thread*/) {
    const std::size_t end = std::min(positions_.size(), (block + 1) * kTokens);
    for (std::size_t token = block * kTokens; token < end; ++token) {
      double* cosines = angles_.data() + token * 4 * pairs;
      double* sines = cosines + 2 * pairs;
      for (std::size_t i = 0; i < pairs; ++i) {
        const double angle = static_cast<double>(positions_[token]) * frequencies_[i];
        cosines[2 * i] = cosines[2 * i + 1] = std::cos(angle);
        const double sine = std::sin(angle);
        sines[2 * i] = -sine;
        sines[2 * i + 1] = sine;
      }
    }
  });
}

}  // namespace tributary::cpu
