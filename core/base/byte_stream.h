// Flat encoding of plain values into bytes and back, bounds-checked. Little-endian hosts only.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace tributary {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void value(const T& value) { append(std::as_bytes(std::span(&value, 1))); }
  /// A count (32 bits), then the values.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void list(std::span<const T> values) {
    value(static_cast<std::uint32_t>(values.size()));
    append(std::as_bytes(values));
  }

  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  // Defined apart from the header: GCC 12 and 14 warn falsely of writes past the end if it is
  // inlined.
  void append(std::span<const std::byte> bytes);

  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  /// Throws kMalformedInput when fewer than sizeof(T) bytes are left.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T value() {
    T result;
    std::memcpy(&result, take(sizeof(T)).data(), sizeof(T));
    return result;
  }
  /// Reads what ByteWriter::list wrote; the count is checked against the bytes that are left.
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::vector<T> list() {
    const std::size_t count = value<std::uint32_t>();
    const auto bytes = take(count * sizeof(T));
    std::vector<T> result(count);
    if (count > 0) std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }

  [[nodiscard]] bool empty() const noexcept { return rest_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t bytes) {
    if (bytes > rest_.size()) {
      fail(ErrorCode::kMalformedInput, "message: {} bytes wanted, {} left", bytes, rest_.size());
    }
    const auto result = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return result;
  }

  std::span<const std::byte> rest_;
};

}  // namespace tributary
