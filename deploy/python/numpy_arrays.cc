#include "deploy/python/numpy_arrays.h"

// Only what NumPy 2 has; the module serves programs of NumPy 1 too where they keep to that.
#define NPY_NO_DEPRECATED_API NPY_1_23_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>
#include <type_traits>

namespace tributary::python {
namespace {

namespace nb = nanobind;
using Code = nb::dlpack::dtype_code;

static_assert(sizeof(npy_intp) == sizeof(std::int64_t) && std::is_signed_v<npy_intp>);

std::optional<nb::dlpack::dtype> type_of_number(int number) {
  const auto type = [](Code code, std::uint8_t bits) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), bits, 1};
  };
  switch (number) {
    case NPY_FLOAT:
      return type(Code::Float, 32);
    case NPY_DOUBLE:
      return type(Code::Float, 64);
    case NPY_UBYTE:
      return type(Code::UInt, 8);
    case NPY_USHORT:
      return type(Code::UInt, 16);
    case NPY_INT:
      return type(Code::Int, 32);
    default:
      return {};
  }
}

}  // namespace

void load_numpy() {
  if (_import_array() < 0) throw nb::python_error();
}

bool is_numpy_array(nb::handle object) {
  return PyArray_CheckExact(object.ptr());
}

std::optional<NumpyArray> find_numpy_array(nb::handle object) {
  if (!is_numpy_array(object)) return {};
  auto* const array = reinterpret_cast<PyArrayObject*>(object.ptr());
  const auto dimensions = static_cast<std::size_t>(PyArray_NDIM(array));
  const auto type = type_of_number(PyArray_TYPE(array));
  if (!type || dimensions < 1 || dimensions > kMaxDimensions || !PyArray_ISNOTSWAPPED(array)) {
    return {};
  }
  NumpyArray found{
      .data = static_cast<std::byte*>(PyArray_DATA(array)),
      .type = *type,
      .shape = {reinterpret_cast<const std::int64_t*>(PyArray_DIMS(array)), dimensions},
      .strides = {},
      .writable = PyArray_ISWRITEABLE(array) != 0};
  const npy_intp bytes = type->bits / 8;
  for (std::size_t i = 0; i < dimensions; ++i) {
    const npy_intp stride = PyArray_STRIDES(array)[i];
    if (stride % bytes != 0) return {};
    found.strides[i] = stride / bytes;
  }
  return found;
}

nb::object make_numpy_array(float* data, std::span<const std::size_t> shape,
                            std::span<const std::int64_t> strides, const nb::object& owner) {
  std::array<npy_intp, kMaxDimensions> extents{};
  std::array<npy_intp, kMaxDimensions> apart{};
  std::ranges::transform(shape, extents.begin(),
                         [](std::size_t extent) { return static_cast<npy_intp>(extent); });
  std::ranges::transform(strides, apart.begin(), [](std::int64_t stride) {
    return static_cast<npy_intp>(stride * std::int64_t{sizeof(float)});
  });
  auto array = nb::steal(PyArray_New(&PyArray_Type, static_cast<int>(shape.size()), extents.data(),
                                     NPY_FLOAT, apart.data(), data, 0,
                                     NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  // The call takes the reference, even if it fails.
  if (PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(array.ptr()),
                            nb::object(owner).release().ptr()) < 0) {
    throw nb::python_error();
  }
  return array;
}

}  // namespace tributary::python
