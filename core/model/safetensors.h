// Reader of the safetensors format (https://github.com/huggingface/safetensors, README "Format"):
// 8 bytes little-endian header length, JSON header, data. Memory-mapped; nothing is trusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"

namespace tributary {

/// A tensor inside a mapped file; valid as long as the file object lives.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // row-major, little-endian, may be unaligned

  /// `[2, 37, 256]`.
  [[nodiscard]] std::string shape_text() const;
};

/// The header of a safetensors blob, validated: lengths, UTF-8 JSON, known dtypes, shapes whose
/// product equals the byte range, ranges that cover the data without overlap or gap.
struct SafetensorsHeader {
  std::map<std::string, TensorView, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
  /// Tensors of the format's other dtypes (I64, F16, ...), validated like the rest: name -> dtype.
  std::map<std::string, std::string, std::less<>> unreadable;
};

/// The longest header that is read, as in the published implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

/// Views in the result point into `file`. Throws kMalformedInput with a message that starts with
/// `source`.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> file,
                                                  std::string_view source);

class SafetensorsFile {
 public:
  /// Maps the file read-only; nobody may shorten it while it is mapped. Copies share the mapping.
  /// Throws kIo, kMalformedInput.
  explicit SafetensorsFile(const std::filesystem::path& path);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] const SafetensorsHeader& header() const noexcept { return header_; }
  /// Whether the file has such a tensor, of whatever dtype.
  [[nodiscard]] bool contains(std::string_view name) const;
  /// Throws kNotFound naming the file and the tensor, or kUnsupported for one of a dtype that is
  /// not read here.
  [[nodiscard]] const TensorView& tensor(std::string_view name) const;
  /// As above, and throws kMalformedInput unless the shape is `shape`.
  [[nodiscard]] const TensorView& tensor(std::string_view name,
                                         std::span<const std::int64_t> shape) const;

 private:
  class Mapping;
  std::filesystem::path path_;
  std::shared_ptr<const Mapping> mapping_;
  SafetensorsHeader header_;
};

/// All elements as float (F64 and I32 round to nearest), or as double. Throws kUnsupported for FP8,
/// which means nothing without its scales.
[[nodiscard]] std::vector<float> to_floats(const TensorView& tensor);
[[nodiscard]] std::vector<double> to_doubles(const TensorView& tensor);

}  // namespace tributary
