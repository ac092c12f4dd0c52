#include "core/sequencer/overlap.h"

#include <array>
#include <cstddef>

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr std::array<std::string_view, 3> kNames{"never", "auto", "always"};

}  // namespace

Overlap parse_overlap(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Overlap>(i);
  }
  fail(ErrorCode::kInvalidArgument, "overlap is '{}', expected never, auto or always", name);
}

std::string_view overlap_name(Overlap overlap) noexcept {
  return kNames[static_cast<std::size_t>(overlap)];
}

}  // namespace tributary
