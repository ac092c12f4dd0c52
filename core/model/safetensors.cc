// A memory-mapped safetensors file, its look-ups, and the widening of its elements.
#include "core/model/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

[[noreturn]] void fail_io(const std::filesystem::path& path, std::string_view action, int error) {
  fail(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), action,
       std::generic_category().message(error));
}

/// Element i of an unaligned array.
template <typename T>
T load(const std::byte* data, std::size_t i) {
  T value{};
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <typename Out>
std::vector<Out> widen(const TensorView& tensor) {
  const std::byte* data = tensor.bytes.data();
  std::vector<Out> out(tensor.bytes.size() / dtype_bytes(tensor.dtype));
  switch (tensor.dtype) {
    case DType::kF64:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Out>(load<double>(data, i));
      return out;
    case DType::kF32:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = load<float>(data, i);
      return out;
    case DType::kBF16:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(load<bf16>(data, i));
      return out;
    case DType::kU8:
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = load<std::uint8_t>(data, i);
      return out;
    case DType::kI32:
      for (std::size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<Out>(load<std::int32_t>(data, i));
      }
      return out;
    case DType::kF8E4M3:
      break;
  }
  fail(ErrorCode::kUnsupported, "tensor {} is {}, which has no value without its scales",
       quote(tensor.name), dtype_name(tensor.dtype));
}

}  // namespace

std::string TensorView::shape_text() const {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Owner of a read-only mapping of a whole file.
class SafetensorsFile::Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    // O_NONBLOCK: opening a named pipe must not wait for a writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) fail_io(path, "open", errno);
    struct stat status = {};
    const int stat_error = ::fstat(file, &status) == 0 ? 0 : errno;
    const bool regular = stat_error == 0 && S_ISREG(status.st_mode);
    int map_error = 0;
    if (regular && status.st_size > 0) {  // nothing of length 0 can be mapped
      size_ = static_cast<std::size_t>(status.st_size);
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      map_error = data_ == MAP_FAILED ? errno : 0;
    }
    ::close(file);
    if (stat_error != 0) fail_io(path, "stat", stat_error);
    if (!regular) {
      fail(ErrorCode::kIo, "{}: is {}", path.string(),
           S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
    }
    if (map_error != 0) fail_io(path, "map", map_error);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (size_ > 0) ::munmap(data_, size_);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    return {static_cast<const std::byte*>(data_), size_};
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path),
      mapping_(std::make_shared<const Mapping>(path)),
      header_(parse_safetensors(mapping_->bytes(), path.string())) {}

bool SafetensorsFile::contains(std::string_view name) const {
  return header_.tensors.contains(name) || header_.unreadable.contains(name);
}

const TensorView& SafetensorsFile::tensor(std::string_view name) const {
  if (const auto it = header_.tensors.find(name); it != header_.tensors.end()) return it->second;
  if (const auto it = header_.unreadable.find(name); it != header_.unreadable.end()) {
    fail(ErrorCode::kUnsupported,
         "{}: tensor {} is {}; only F64, F32, BF16, F8_E4M3, U8 and I32 are read", path_.string(),
         quote(name), it->second);
  }
  fail(ErrorCode::kNotFound, "{}: no tensor {} among its {}", path_.string(), quote(name),
       header_.tensors.size() + header_.unreadable.size());
}

const TensorView& SafetensorsFile::tensor(std::string_view name,
                                          std::span<const std::int64_t> shape) const {
  const TensorView& found = tensor(name);
  if (!std::equal(found.shape.begin(), found.shape.end(), shape.begin(), shape.end())) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {} has shape {}, must have [{}]", path_.string(),
         quote(name), found.shape_text(), fmt::join(shape, ", "));
  }
  return found;
}

std::vector<float> to_floats(const TensorView& tensor) {
  return widen<float>(tensor);
}
std::vector<double> to_doubles(const TensorView& tensor) {
  return widen<double>(tensor);
}

}  // namespace tributary
