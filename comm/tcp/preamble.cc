#include "comm/tcp/preamble.h"

namespace tributary::tcp {

Status check_preamble(const Preamble& preamble) {
  if (preamble.magic != Preamble::kMagic) {
    return {ErrorCode::kMalformedInput, "not a transport of Tributary"};
  }
  if (preamble.version != Preamble::kVersion) {
    return {ErrorCode::kUnsupported, fmt::format("it speaks version {}, this side version {}",
                                                 preamble.version, Preamble::kVersion)};
  }
  return {};
}

}  // namespace tributary::tcp
