// Memory for bytes that are about to be overwritten: not cleared first.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace tributary {

/// Grows without keeping its contents.
class RawBytes {
 public:
  RawBytes() = default;
  explicit RawBytes(std::size_t bytes) { resize(bytes); }

  /// The first `bytes` bytes; the contents are lost when it has to grow.
  std::span<std::byte> resize(std::size_t bytes) {
    if (bytes > capacity_) {
      data_.reset();  // frees first, so that the two never exist at once
      data_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      capacity_ = bytes;
    }
    bytes_ = bytes;
    return span();
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data_.get(), bytes_}; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }

 private:
  std::unique_ptr<std::byte[]> data_;  // NOLINT(modernize-avoid-c-arrays)
  std::size_t bytes_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace tributary
