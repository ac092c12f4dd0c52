// Any bytes as the answer to an admission, which the client library reads. They are refused with
// kMalformedInput, or give an answer that is written as it was read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "deploy/service/protocol/admission.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tributary::parse_sequence_handle;
  try {
    const auto answer = parse_sequence_handle({reinterpret_cast<const char*>(data), size});
    const std::string text = to_json(answer);
    if (to_json(parse_sequence_handle(text)) != text) std::abort();
  } catch (const tributary::Error& error) {
    if (error.code() != tributary::ErrorCode::kMalformedInput) std::abort();
  }
  return 0;
}
