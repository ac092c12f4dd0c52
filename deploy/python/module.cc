// The module tributary._core: the client library for Python.
#include <nanobind/nanobind.h>

#include "deploy/python/client.h"
#include "deploy/python/errors.h"
#include "deploy/python/flash_mla.h"
#include "deploy/python/numpy_arrays.h"
#include "deploy/python/pool.h"
#include "deploy/python/rows.h"
#include "deploy/python/sequence.h"
#include "deploy/python/shape_object.h"
#include "deploy/python/step.h"
#include "deploy/python/tier.h"

NB_MODULE(_core, module) {
  module.doc() = "The client library of a decode tier; import tributary instead.";
  // Objects that a program still holds when it ends are not leaks.
  nanobind::set_leak_warnings(false);
  tributary::python::load_numpy();
  tributary::python::bind_errors(module);
  tributary::python::bind_rows(module);
  tributary::python::bind_sequence(module);
  tributary::python::bind_model_shape(module);
  tributary::python::bind_step(module);
  tributary::python::bind_client(module);
  tributary::python::bind_flash_mla(module);
  tributary::python::bind_pool(module);
  tributary::python::bind_end();
}
