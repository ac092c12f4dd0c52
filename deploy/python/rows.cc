#include "deploy/python/rows.h"

#include <atomic>
#include <memory>

#include "core/base/elements.h"
#include "core/model/cut_values.h"
#include "deploy/python/tier.h"
#include "deploy/service/client/row_pull.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;

Expected expected_rows(const char* name, const PoolShape& shape, std::int64_t count, bool gaps) {
  const std::optional<DType> plain = plain_elements(shape.row_format);
  const auto width = static_cast<std::int64_t>(plain ? shape.row().values() : shape.row_bytes());
  return {name, plain.value_or(DType::kU8), {count, width}, gaps};
}

/// The type of values that are to be encoded or decoded; none: rows as they are stored.
std::optional<DType> values_of(nb::handle rows, const char* name, const PoolShape& shape) {
  if (plain_elements(shape.row_format)) return {};
  return find_float_type(rows, name);
}

std::atomic<std::size_t> values_cut = 0;

Array encoded(const Array& values, DType type, const RowLayout& layout) {
  const auto count = static_cast<std::size_t>(values.count);
  Array rows;
  rows.stride = layout.bytes();
  rows.count = values.count;
  rows.shape = {values.count, static_cast<std::int64_t>(rows.stride)};
  rows.bytes = count * rows.stride;
  rows.own = std::make_shared_for_overwrite<std::byte[]>(rows.bytes);
  rows.data = rows.own.get();
  const Unlocked unlocked;
  std::vector<float> row(layout.values());
  for (std::size_t i = 0; i < count; ++i) {
    load_elements(type, values.data + i * values.stride, row);
    if (const std::size_t cut = cut_values(layout, row); cut > 0) values_cut += cut;
    layout.encode(row, rows.own.get() + i * rows.stride);
  }
  return rows;
}

}  // namespace

Array read_rows(nb::handle rows, const char* name, const PoolShape& shape, std::int64_t count,
                bool gaps) {
  const std::optional<DType> values = values_of(rows, name, shape);
  if (!values) return read_array(rows, expected_rows(name, shape, count, gaps));
  const auto width = static_cast<std::int64_t>(shape.row().values());
  return encoded(read_array(rows, {name, *values, {count, width}, gaps}), *values, shape.row());
}

void bind_rows(nb::module_& module) {
  module.def(
      "cut_values", [] { return values_cut.load(); },
      "How many values this process has cut to 448 x scale so far, where rows were encoded for\n"
      "pools of `fp8`: with many of them the pool's scale is too small.");
}

PulledInto::PulledInto(nb::handle out, const SequenceHandle& sequence, std::int64_t begin,
                       std::int64_t end)
    : layout_(sequence.shape.row()), count_(static_cast<std::size_t>(end - begin)) {
  check_pull(sequence, begin, end);
  const Expected expected = expected_rows("out", sequence.shape, end - begin, /*gaps=*/false);
  if (out.is_none()) {
    const char* type = "uint8";
    if (expected.type == DType::kF32) type = "float32";
    if (expected.type == DType::kBF16) type = "uint16";
    const nb::object rows = nb::module_::import_("numpy").attr("empty")(
        nb::make_tuple(expected.shape[0], expected.shape[1]), type);
    place_ = find_place(rows, expected);
    return;
  }
  values_ = values_of(out, "out", sequence.shape);
  if (!values_) {
    place_ = find_place(out, expected);
    return;
  }
  const auto width = static_cast<std::int64_t>(layout_.values());
  place_ = find_place(out, {"out", *values_, {end - begin, width}, false});
  encoded_.resize(count_ * layout_.bytes());
}

std::span<std::byte> PulledInto::stored() noexcept {
  if (values_) return encoded_;
  return {place_.data, count_ * layout_.bytes()};
}

void PulledInto::decode() {
  if (!values_) return;
  std::vector<float> row(layout_.values());
  for (std::size_t i = 0; i < count_; ++i) {
    layout_.decode(encoded_.data() + i * layout_.bytes(), row);
    store_elements(*values_, row, place_.data + i * row.size() * dtype_bytes(*values_));
  }
}

}  // namespace tributary::python
