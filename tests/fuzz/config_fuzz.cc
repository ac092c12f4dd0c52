// Fuzz target: any bytes as a config.json, of a model and of a pool without weights. They are
// refused with a typed error, or give a shape that is valid and computable.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "core/model/rope.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

/// Whatever the reader accepts, `validate` accepts too: an Error from here escapes.
void check(const tributary::ModelShape& shape) {
  tributary::validate(shape);
  const double scale = shape.softmax_scale();
  require(std::isfinite(scale) && scale > 0);
  for (const double frequency : tributary::rope_frequencies(shape.rope, shape.qk_rope_head_dim)) {
    require(std::isfinite(frequency) && frequency > 0 && frequency <= 1);
  }
}

void check(const tributary::MlaShape& shape) {
  tributary::validate(shape);
}

/// Checks the result of `parse`, or that it refuses in one of the stated ways.
template <typename Parse>
void check_parsed(Parse parse, std::string_view text) {
  decltype(parse(text, text)) shape;
  try {
    shape = parse(text, "fuzz");
  } catch (const tributary::Error& error) {
    require(error.code() == tributary::ErrorCode::kMalformedInput ||
            error.code() == tributary::ErrorCode::kUnsupported);
    return;
  }
  check(shape);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_parsed(tributary::parse_model_config, text);
  check_parsed(tributary::parse_mla_shape, text);
  return 0;
}
