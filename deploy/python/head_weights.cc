#include "deploy/python/head_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/elements.h"
#include "core/base/error.h"
#include "deploy/python/arrays.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;

/// Rows of the array one after the other, as fp32.
std::vector<float> floats_of(const Array& array, DType type, std::int64_t columns) {
  const auto width = static_cast<std::size_t>(columns);
  std::vector<float> values(static_cast<std::size_t>(array.count) * width);
  for (std::size_t row = 0; row < static_cast<std::size_t>(array.count); ++row) {
    load_elements(type, array.data + row * array.stride,
                  std::span(values).subspan(row * width, width));
  }
  return values;
}

std::vector<float> read_layer(nb::handle object, const std::string& name, const MlaShape& shape) {
  const DType type = float_type(object, name.c_str());
  const Array array = read_array(object, {name.c_str(), type, {-1, shape.kv_lora_rank}, true});
  std::vector<float> values = floats_of(array, type, shape.kv_lora_rank);
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad != values.end()) {
    fail(ErrorCode::kInvalidArgument, "{}: element {} is {}", name, bad - values.begin(), *bad);
  }
  return values;
}

}  // namespace

std::shared_ptr<const GivenHeadWeights> read_head_weights(nb::handle arrays, int v_head_dim,
                                                          const MlaShape& shape) {
  auto given = std::make_shared<GivenHeadWeights>();
  given->v_head_dim = v_head_dim;
  for (const nb::handle each : nb::iter(arrays)) {
    const std::string name = fmt::format("kv_b_proj[{}]", given->kv_b_proj.size());
    std::vector<float> values = read_layer(each, name, shape);
    const std::int64_t rows = std::ssize(values) / shape.kv_lora_rank;
    const std::int64_t nope = rows / shape.heads - v_head_dim;
    if (v_head_dim < 1 || nope < 1 || rows % shape.heads != 0 ||
        (given->qk_nope_head_dim != 0 && given->qk_nope_head_dim != nope)) {
      fail(ErrorCode::kInvalidArgument,
           "{} has {} rows, expected those of {} heads, each qk_nope_head_dim, 1 or more and the "
           "same of all layers, and v_head_dim, {}",
           name, rows, shape.heads, v_head_dim);
    }
    given->qk_nope_head_dim = static_cast<int>(nope);
    given->kv_b_proj.push_back(std::move(values));
  }
  return given;
}

}  // namespace tributary::python
