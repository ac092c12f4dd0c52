// A model's shape as Python gives it and sees it: what its pool must have.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "core/model/mla_shape.h"

namespace tributary::python {

/// Whether it is a preset's name or a path, which find_mla_shape() takes.
[[nodiscard]] bool names_shape(nanobind::handle shape);
/// The shape of a dict (of a shape's own keys, or a config.json's content), of a tributary.Shape or
/// of a ModelShape, with another softmax scale if one is given; valid. Throws TypeError for others.
[[nodiscard]] MlaShape read_mla_shape(nanobind::handle shape, std::optional<double> softmax_scale);

void bind_model_shape(nanobind::module_& module);

}  // namespace tributary::python
