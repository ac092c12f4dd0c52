// Any bytes as the answer to an admission, as the client library reads it: refused with
// kMalformedInput, or an answer that is written as it was read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "deploy/tier/admission_answer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using tributary::parse_admission_answer;
  try {
    const auto answer = parse_admission_answer({reinterpret_cast<const char*>(data), size});
    const std::string text = to_json(answer);
    if (to_json(parse_admission_answer(text)) != text) std::abort();
  } catch (const tributary::Error& error) {
    if (error.code() != tributary::ErrorCode::kMalformedInput) std::abort();
  }
  return 0;
}
