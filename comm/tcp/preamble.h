// The first bytes that each side of a connection sends: which protocol it speaks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/error.h"

namespace tributary::tcp {

struct Preamble {
  std::uint64_t magic = kMagic;
  std::uint32_t version = kVersion;
  static constexpr std::uint64_t kMagic = 0x3150'4354'4249'5254;  // "TRIBTCP1"
  static constexpr std::uint32_t kVersion = 2;
  static constexpr std::size_t kBytes = 12;
  static void fields(auto& archive, auto& m) { archive(m.magic, m.version); }
};

/// kMalformedInput if the other side is not Tributary, kUnsupported if its version differs.
[[nodiscard]] Status check_preamble(const Preamble& preamble);

}  // namespace tributary::tcp
