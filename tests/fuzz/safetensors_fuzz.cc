// Fuzz target: any bytes as a safetensors file. They are refused with a typed error, or every view
// lies inside them, the views cover the data, and their elements can be read.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/base/error.h"
#include "core/model/safetensors.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check(std::span<const std::byte> file) {
  const tributary::SafetensorsHeader header = tributary::parse_safetensors(file, "fuzz");
  std::size_t covered = 0;
  for (const auto& [name, tensor] : header.tensors) {
    require(name == tensor.name && !header.unreadable.contains(name));
    require(tensor.bytes.data() >= file.data());
    require(tensor.bytes.data() + tensor.bytes.size() <= file.data() + file.size());
    covered += tensor.bytes.size();
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) {
      require(size >= 0);
      elements *= size;
    }
    require(elements * dtype_bytes(tensor.dtype) == tensor.bytes.size());
    require(!tensor.shape_text().empty());
    if (tensor.dtype == tributary::DType::kF8E4M3) continue;
    require(tributary::to_floats(tensor).size() == static_cast<std::size_t>(elements));
    require(tributary::to_doubles(tensor).size() == static_cast<std::size_t>(elements));
  }
  require(covered <= file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check(std::as_bytes(std::span(data, size)));
  } catch (const tributary::Error& error) {
    require(error.code() == tributary::ErrorCode::kMalformedInput);
  }
  return 0;
}
