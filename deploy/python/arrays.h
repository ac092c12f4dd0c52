// Arrays of Python (DLPack, the buffer protocol) in the form that the client library takes:
// checked, never copied. A wrong type, shape, stride or device is a TypeError or ValueError that
// names the argument.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/dtype.h"
#include "deploy/python/numpy_arrays.h"

namespace tributary::python {

/// An argument: its name and the requirements on it.
struct Expected {
  const char* name = nullptr;
  std::optional<DType> type = DType::kF32;  // kU8: bytes as they are; none: int32
  std::vector<std::int64_t> shape;          // -1: any number; up to kMaxDimensions
  bool gaps = true;                         // whether elements of the first dimension may lie apart
};

/// Memory, mostly of the caller, which this object keeps. It has no gaps inside an element of the
/// first dimension; `stride` bytes lie between elements.
struct Array {
  nanobind::object numpy;                    // whose it is: an array of NumPy's,
  nanobind::ndarray<nanobind::ro> exported;  // or what another library has exported
  std::shared_ptr<std::byte[]> own;          // or made here
  const std::byte* data = nullptr;
  std::array<std::int64_t, kMaxDimensions> shape{};
  std::size_t stride = 0;
  std::int64_t count = 0;  // of the first dimension
  std::size_t bytes = 0;   // of all of them, without gaps
};

[[nodiscard]] Array read_array(nanobind::handle object, const Expected& expected);

/// Which of kF32 and kBF16 (or its bits) the array's type is; none: another one.
[[nodiscard]] std::optional<DType> find_float_type(nanobind::handle object, const char* name);
/// The same; another one is a TypeError.
[[nodiscard]] DType float_type(nanobind::handle object, const char* name);

[[nodiscard]] bool is_torch(nanobind::handle object);

/// Memory of the caller's for results, which `owner` keeps.
struct Place {
  nanobind::object owner;
  std::byte* data = nullptr;
};

/// `object` has to be writable and as expected, without gaps.
[[nodiscard]] Place find_place(nanobind::handle object, const Expected& expected);

/// The memory for fp32 results.
struct Buffer {
  nanobind::object owner;
  float* data = nullptr;
};

/// Uses `object`, which has to be writable fp32 of this shape without gaps; for None, new memory.
[[nodiscard]] Buffer output_buffer(nanobind::handle object, const char* name,
                                   std::span<const std::int64_t> shape);

/// A part of `buffer` from `begin` on, strides in elements: a tensor of torch if `like` is one,
/// otherwise an array of NumPy.
[[nodiscard]] nanobind::object view(const Buffer& buffer, std::size_t begin,
                                    std::initializer_list<std::size_t> shape,
                                    std::initializer_list<std::int64_t> strides,
                                    nanobind::handle like);

}  // namespace tributary::python
