// Fuzz target: any bytes as a request trace. They are refused with a typed error, or every request
// keeps what the reader promises.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/workload/trace.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  try {
    constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
    double previous = 0;
    for (const tributary::TraceRequest& request : tributary::read_trace(in, "fuzz")) {
      require(request.timestamp_ms >= previous);
      require(request.input_length >= 1 && request.input_length <= kMax);
      require(request.output_length >= 1 && request.output_length <= kMax);
      previous = request.timestamp_ms;
    }
  } catch (const tributary::Error& error) {
    require(error.code() == tributary::ErrorCode::kMalformedInput);
  }
  return 0;
}
