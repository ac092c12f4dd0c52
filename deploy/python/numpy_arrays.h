// NumPy's arrays through its C interface. They are read and made in place, without the objects that
// DLPack and the buffer protocol need, whose code and data a call would load from cold memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace tributary::python {

/// Call this before everything else here. Throws whatever importing NumPy raises.
void load_numpy();

/// Nothing here has more dimensions.
inline constexpr std::size_t kMaxDimensions = 4;

/// An array's memory, valid as long as the array lives.
struct NumpyArray {
  std::byte* data = nullptr;
  nanobind::dlpack::dtype type{};
  std::span<const std::int64_t> shape;
  std::array<std::int64_t, kMaxDimensions> strides{};  // in elements
  bool writable = false;
};

/// Returns no value unless the object is of NumPy's own class, with 1 to kMaxDimensions dimensions,
/// strides of whole elements, one of the types that calls take, and this machine's byte order.
[[nodiscard]] std::optional<NumpyArray> find_numpy_array(nanobind::handle object);

[[nodiscard]] bool is_numpy_array(nanobind::handle object);

/// An array of fp32 over `data`, which `owner` keeps; strides in elements.
[[nodiscard]] nanobind::object make_numpy_array(float* data, std::span<const std::size_t> shape,
                                                std::span<const std::int64_t> strides,
                                                const nanobind::object& owner);

}  // namespace tributary::python
