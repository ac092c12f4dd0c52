#include "deploy/python/arrays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

namespace tributary::python {
namespace {

namespace nb = nanobind;
using Code = nb::dlpack::dtype_code;

std::string type_text(nb::dlpack::dtype type) {
  const auto name = [&]() -> std::string_view {
    switch (static_cast<Code>(type.code)) {
      case Code::Int:
        return "int";
      case Code::UInt:
        return "uint";
      case Code::Float:
        return "float";
      case Code::Bfloat:
        return "bfloat";
      case Code::Complex:
        return "complex";
      case Code::Bool:
        return "bool";
      default:
        return "float8 or another type of width ";
    }
  }();
  return fmt::format("{}{}", name, type.bits);
}

bool is(nb::dlpack::dtype type, Code code, int bits) {
  return type.code == static_cast<std::uint8_t>(code) && type.bits == bits && type.lanes == 1;
}

bool fits(nb::dlpack::dtype type, std::optional<DType> expected) {
  if (!expected) return is(type, Code::Int, 32);
  switch (*expected) {
    case DType::kF32:
      return is(type, Code::Float, 32);
    case DType::kBF16:  // NumPy has none of its own: its bits
      return is(type, Code::Bfloat, 16) || is(type, Code::UInt, 16);
    case DType::kF8E4M3:
    case DType::kU8:
      return is(type, Code::UInt, 8);
    case DType::kI32:
      return is(type, Code::Int, 32);
    case DType::kF64:
      return is(type, Code::Float, 64);
  }
  return false;
}

std::string_view expected_text(std::optional<DType> type) {
  if (!type) return "int32";
  switch (*type) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16, or its bits as uint16";
    case DType::kF8E4M3:
    case DType::kU8:
      return "uint8";
    case DType::kI32:
      return "int32";
    case DType::kF64:
      return "float64";
  }
  return "?";
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += shape[i] < 0 ? "n" : std::to_string(shape[i]);
  }
  return text + "]";
}

/// Python's name for the type of an object.
std::string type_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__qualname__")));
}

[[noreturn]] void refuse_type(const std::string& message) {
  throw nb::type_error(message.c_str());
}
[[noreturn]] void refuse_value(const std::string& message) {
  throw nb::value_error(message.c_str());
}

/// Explains why nanobind could not import the object, by the object's type.
[[noreturn]] void refuse_import(nb::handle object, const Expected& expected) {
  if (nb::hasattr(object, "dtype")) {
    const nb::object dtype = object.attr("dtype");
    refuse_type(fmt::format(
        "{}: {} of dtype {} is not exported by DLPack or the buffer protocol; "
        "expected {} (of NumPy's bfloat16 pass .view(numpy.uint16))",
        expected.name, type_of(object), nb::str(dtype).c_str(), expected_text(expected.type)));
  }
  refuse_type(fmt::format("{}: {}, expected an array of {} (DLPack or the buffer protocol)",
                          expected.name, type_of(object), expected_text(expected.type)));
}

/// An array's memory in one form for all protocols.
struct Layout {
  std::byte* data = nullptr;
  nb::dlpack::dtype type{};
  int device = nb::device::cpu::value;
  std::span<const std::int64_t> shape, strides;  // in elements
};

template <typename... Any>
Layout layout_of(const nb::ndarray<Any...>& array) {
  return {reinterpret_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data()))),
          array.dtype(),
          array.device_type(),
          {array.shape_ptr(), array.ndim()},
          {array.stride_ptr(), array.ndim()}};
}

Layout layout_of(const NumpyArray& array) {
  return {array.data, array.type, nb::device::cpu::value, array.shape,
          std::span(array.strides).first(array.shape.size())};
}

/// Throws unless it is on the CPU, of the type and of the shape.
void check(const Layout& array, const Expected& expected) {
  if (array.device != nb::device::cpu::value) {
    refuse_value(fmt::format("{}: on a device (DLPack type {}), expected memory of the CPU",
                             expected.name, array.device));
  }
  if (!fits(array.type, expected.type)) {
    refuse_type(fmt::format("{}: {}, expected {}", expected.name, type_text(array.type),
                            expected_text(expected.type)));
  }
  bool same = array.shape.size() == expected.shape.size();
  for (std::size_t i = 0; same && i < array.shape.size(); ++i) {
    same = expected.shape[i] < 0 || array.shape[i] == expected.shape[i];
  }
  if (!same) {
    refuse_value(fmt::format("{}: shape {}, expected {}", expected.name, shape_text(array.shape),
                             shape_text(expected.shape)));
  }
}

/// The number of elements between neighbours of the first dimension. Throws if there are gaps
/// inside, or outside too if there may be none.
std::int64_t check_strides(const Layout& array, const Expected& expected) {
  std::int64_t inside = 1;
  bool dense = true;
  for (std::size_t i = array.shape.size(); i-- > 1;) {
    const std::int64_t extent = array.shape[i];
    dense = dense && (extent <= 1 || array.strides[i] == inside);
    inside *= extent;
  }
  // The strides of nothing mean nothing.
  if (std::ranges::find(array.shape, 0) != array.shape.end()) return inside;
  const std::int64_t stride = array.shape[0] <= 1 ? inside : array.strides[0];
  if (!dense || stride < inside || (!expected.gaps && stride != inside)) {
    refuse_value(
        fmt::format("{}: strides {} (elements) of shape {}, expected {}", expected.name,
                    shape_text(array.strides), shape_text(array.shape),
                    expected.gaps ? "no gaps but before those of the first dimension" : "no gaps"));
  }
  return stride;
}

/// Views an array that others describe; `kept` keeps its memory.
template <typename... Any>
Layout import_array(nb::handle object, const Expected& expected, nb::ndarray<Any...>& kept) {
  if (!nb::try_cast(object, kept, false)) refuse_import(object, expected);
  return layout_of(kept);
}

}  // namespace

Array read_array(nb::handle object, const Expected& expected) {
  Array array;
  const std::optional<NumpyArray> own = find_numpy_array(object);
  if (own) array.numpy = nb::borrow(object);
  const Layout layout = own ? layout_of(*own) : import_array(object, expected, array.exported);
  check(layout, expected);
  const std::int64_t stride = check_strides(layout, expected);
  const std::size_t element = layout.type.bits / std::size_t{8};
  array.data = layout.data;
  array.stride = static_cast<std::size_t>(stride) * element;
  array.count = layout.shape[0];
  array.bytes = element;
  for (std::size_t i = 0; i < layout.shape.size(); ++i) {
    array.shape[i] = layout.shape[i];
    array.bytes *= static_cast<std::size_t>(layout.shape[i]);
  }
  return array;
}

namespace {

nb::dlpack::dtype type_of_array(nb::handle object, const char* name) {
  nb::ndarray<nb::ro> exported;
  const std::optional<NumpyArray> own = find_numpy_array(object);
  return own ? own->type : import_array(object, {.name = name, .shape = {}}, exported).type;
}

std::optional<DType> float_type_of(nb::dlpack::dtype found) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    if (fits(found, type)) return type;
  }
  return {};
}

}  // namespace

std::optional<DType> find_float_type(nb::handle object, const char* name) {
  return float_type_of(type_of_array(object, name));
}

DType float_type(nb::handle object, const char* name) {
  const nb::dlpack::dtype found = type_of_array(object, name);
  if (const auto type = float_type_of(found)) return *type;
  refuse_type(fmt::format("{}: {}, expected {} or {}", name, type_text(found),
                          expected_text(DType::kF32), expected_text(DType::kBF16)));
}

bool is_torch(nb::handle object) {
  if (is_numpy_array(object)) return false;  // its type's module is a new string each time
  nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  return nb::isinstance<nb::str>(module) &&
         std::string_view(nb::cast<nb::str>(module).c_str()).starts_with("torch");
}

Place find_place(nb::handle object, const Expected& expected) {
  nb::ndarray<> exported;
  const std::optional<NumpyArray> own = find_numpy_array(object);
  const bool writable = own ? own->writable : nb::try_cast(object, exported, false);
  if (!writable) {
    if (nb::ndarray<nb::ro> read_only; own || nb::try_cast(object, read_only, false)) {
      refuse_value(
          fmt::format("{}: read-only, expected memory that can be written", expected.name));
    }
    refuse_import(object, expected);
  }
  const Layout layout = own ? layout_of(*own) : layout_of(exported);
  check(layout, expected);
  static_cast<void>(check_strides(layout, expected));
  return {nb::borrow(object), layout.data};
}

Buffer output_buffer(nb::handle object, const char* name, std::span<const std::int64_t> shape) {
  if (object.is_none()) {
    std::size_t count = 1;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    auto memory = std::make_unique_for_overwrite<float[]>(count);
    float* data = memory.get();
    nb::capsule owner(data, [](void* floats) noexcept { delete[] static_cast<float*>(floats); });
    memory.release();
    return {std::move(owner), data};
  }
  const Place place = find_place(object, {name, DType::kF32, {shape.begin(), shape.end()}, false});
  if (reinterpret_cast<std::uintptr_t>(place.data) % alignof(float) != 0) {
    refuse_value(fmt::format("{}: not aligned to {} bytes", name, alignof(float)));
  }
  return {place.owner, reinterpret_cast<float*>(place.data)};
}

nb::object view(const Buffer& buffer, std::size_t begin, std::initializer_list<std::size_t> shape,
                std::initializer_list<std::int64_t> strides, nb::handle like) {
  float* data = buffer.data + begin;
  if (is_torch(like)) {
    return nb::cast(
        nb::ndarray<nb::pytorch, float, nb::device::cpu>(data, shape, buffer.owner, strides));
  }
  return make_numpy_array(data, shape, strides, buffer.owner);
}

}  // namespace tributary::python
