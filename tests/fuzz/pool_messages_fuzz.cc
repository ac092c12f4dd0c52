// Fuzz target: any bytes as a message of a pool, of the control plane, or as an answer to a client.
// They are refused with a typed error, or give a message that is the same after writing and
// reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "deploy/service/protocol/admission.h"
#include "deploy/service/protocol/pool_messages.h"

namespace {

template <typename Parse>
void check(std::string_view text, const Parse& parse) {
  std::string written;
  try {
    written = tributary::to_json(parse(text));
  } catch (const tributary::Error& error) {
    // kUnsupported: a registration of another protocol.
    if (error.code() != tributary::ErrorCode::kMalformedInput &&
        error.code() != tributary::ErrorCode::kUnsupported) {
      std::abort();
    }
    return;
  }
  if (tributary::to_json(parse(written)) != written) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check(text, tributary::parse_from_pool);
  check(text, tributary::parse_to_pool);
  check(text, tributary::parse_sequence_handle);
  return 0;
}
