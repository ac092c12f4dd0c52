#include "core/base/byte_stream.h"

namespace tributary {

void ByteWriter::append(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

}  // namespace tributary
