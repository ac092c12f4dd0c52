#include "deploy/python/shape_object.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string>

#include "core/base/error.h"
#include "core/model/model_family.h"
#include "core/model/pool_shape.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

MlaShape parse_dict(nb::handle shape, std::optional<double> softmax_scale) {
  nb::dict fields;
  fields.update(nb::borrow<nb::dict>(nb::module_::import_("builtins").attr("dict")(shape)));
  if (softmax_scale && !fields.contains("model_type")) fields["softmax_scale"] = *softmax_scale;
  const nb::object text = nb::module_::import_("json").attr("dumps")(fields);
  return parse_mla_shape(nb::cast<std::string>(text), "shape");
}

MlaShape model_of(const PoolShape& served) {
  return {.name = "shape",
          .heads = served.heads,
          .kv_lora_rank = served.kv_lora_rank,
          .qk_rope_head_dim = served.qk_rope_head_dim,
          .layers = served.layers,
          .softmax_scale = served.softmax_scale,
          .topk = served.topk};
}

MlaShape make_model_shape(nb::handle shape) {
  if (names_shape(shape)) return find_mla_shape(nb::cast<std::string>(nb::str(shape)));
  return read_mla_shape(shape, {});
}

void check_pool(const MlaShape& model, const PoolShape& pool) {
  if (const auto difference = find_difference(model, pool)) {
    fail(ErrorCode::kInvalidArgument, "the pool's {} is {}, the model's {}", difference->field,
         difference->second, difference->first);
  }
}

}  // namespace

bool names_shape(nb::handle shape) {
  return nb::isinstance<nb::str>(shape) || nb::hasattr(shape, "__fspath__");
}

MlaShape read_mla_shape(nb::handle shape, std::optional<double> softmax_scale) {
  MlaShape model;
  if (nb::isinstance<MlaShape>(shape)) {
    model = nb::cast<const MlaShape&>(shape);
  } else if (nb::isinstance<PoolShape>(shape)) {
    model = model_of(nb::cast<const PoolShape&>(shape));
  } else if (nb::hasattr(shape, "keys")) {
    model = parse_dict(shape, softmax_scale);
  } else {
    const nb::str type(nb::handle(shape.type()).attr("__qualname__"));
    throw nb::type_error(
        fmt::format("shape: {}, expected a name, a path, a dict or a tributary.Shape", type.c_str())
            .c_str());
  }
  if (softmax_scale) model.softmax_scale = *softmax_scale;
  validate(model);
  return model;
}

void bind_model_shape(nb::module_& module) {
  module.def("model_families", &model_family_names, "with_weights"_a,
             "The `model_type`s that are known, or those whose weights a pool reads.");
  nb::class_<MlaShape>(
      module, "ModelShape",
      "What a pool needs to know of a model: what `tributary up --shape` reads.\n\n"
      "shape: a preset's name, the path of a shape or a config.json, or a dict of either.")
      .def(
          "__init__",
          [](MlaShape* place, nb::object shape) { new (place) MlaShape(make_model_shape(shape)); },
          "shape"_a, nb::sig("def __init__(self, shape: typing.Any) -> None"))
      .def_ro("name", &MlaShape::name, "the preset's, or the `model_type`")
      .def_ro("heads", &MlaShape::heads)
      .def_ro("kv_lora_rank", &MlaShape::kv_lora_rank)
      .def_ro("qk_rope_head_dim", &MlaShape::qk_rope_head_dim)
      .def_ro("layers", &MlaShape::layers, "that have rows")
      .def_ro("softmax_scale", &MlaShape::softmax_scale)
      .def_ro("topk", &MlaShape::topk, "rows that a token selects; 0: all")
      .def(
          "check", &check_pool, "pool"_a,
          "Raises InvalidArgument, a ValueError, where the pool of a sequence's `shape` is not of\n"
          "this model: another softmax scale would give wrong attention without a word.");
}

}  // namespace tributary::python
