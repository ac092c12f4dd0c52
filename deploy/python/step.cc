#include "deploy/python/step.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>
#include <nanobind/typing.h>

#include <algorithm>
#include <numeric>

#include "core/base/limits.h"
#include "deploy/python/arrays.h"
#include "deploy/python/errors.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

/// What a layer's call returns, or raises.
nb::object given(const std::optional<ItemsError>& failed, nb::object results) {
  if (failed) raise_items(*failed, results);
  return results;
}

}  // namespace

/// The inputs of all tokens of a step; `row` is empty for forward(), `selected` where the pool
/// attends to all rows.
struct Step::Inputs {
  Array query, row, selected;
};

Step::Step(SharedTier tier, std::vector<nb::object> sequences, std::vector<std::int32_t> tokens)
    : tier_(std::move(tier)),
      objects_(std::move(sequences)),
      tokens_(std::move(tokens)),
      accepted_(tokens_),
      total_(std::accumulate(tokens_.begin(), tokens_.end(), std::int64_t{0})) {
  if (objects_.size() != tokens_.size()) {
    fail(ErrorCode::kInvalidArgument, "tokens of {} sequences for {} sequences: expected one each",
         tokens_.size(), objects_.size());
  }
  for (const std::int32_t tokens : tokens_) {
    if (tokens >= 0 && tokens <= kMaxStepTokens) continue;
    fail(ErrorCode::kInvalidArgument, "{} new tokens of a sequence, expected 0 to {}", tokens,
         kMaxStepTokens);
  }
  for (const nb::object& object : objects_) {
    auto* sequence = nb::cast<Sequence*>(object);
    const SequenceId id = sequence->handle.id;
    if (&sequence->tier() != tier_.get()) {
      fail(ErrorCode::kInvalidArgument, "sequence {} is another client's: client.adopt(sequence)",
           id);
    }
    if (std::ranges::find(sequences_, sequence) != sequences_.end()) {
      fail(ErrorCode::kInvalidArgument, "sequence {} stands twice in a step", id);
    }
    if (sequences_.empty()) shape_ = sequence->handle.shape;
    if (const auto difference = find_difference(shape_, sequence->handle.shape)) {
      fail(ErrorCode::kInvalidArgument, "sequence {} has {} {}, the step's first one {}", id,
           difference->field, difference->second, difference->first);
    }
    sequences_.push_back(sequence);
  }
}

void Step::check_open() const {
  if (ended_) fail(ErrorCode::kFailedPrecondition, "the step has been committed or aborted");
}

Step::Inputs Step::read_inputs(nb::handle query, nb::handle row, nb::handle selected,
                               int query_width) const {
  if (sequences_.empty()) return {};
  if (selected.is_none() != (shape_.topk == 0)) {
    fail(ErrorCode::kInvalidArgument, "selected: {}",
         shape_.topk == 0 ? "given, but the pool attends to all rows"
                          : "None, but the pool attends to the rows that a token selects");
  }
  return {
      read_array(query, {"query", shape_.query_dtype, {total_, shape_.heads, query_width}, true}),
      read_rows(row, "row", shape_, total_, /*gaps=*/true),
      selected.is_none() ? Array{} : read_array(selected, {"selected", {}, {total_, -1}, true})};
}

std::optional<ItemsError> Step::run(Run call, int layer, const Inputs& inputs, float* output,
                                    std::size_t token_floats, Timeout timeout) {
  check_open();
  const Use use(sequences_);
  const auto of = [](const Array& array, std::int64_t token) -> TokenData {
    if (array.data == nullptr) return {};
    return {array.data + size(token) * array.stride, array.stride};
  };
  std::vector<LayerItem> items;
  items.reserve(sequences_.size());
  std::int64_t token = 0;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    items.push_back({.sequence = &sequences_[i]->handle,
                     .tokens = tokens_[i],
                     .query = of(inputs.query, token),
                     .row = of(inputs.row, token),
                     .selected = of(inputs.selected, token),
                     .selected_count = static_cast<std::int32_t>(
                         std::min<std::int64_t>(inputs.selected.shape[1], INT32_MAX)),
                     .output = output + size(token) * token_floats});
    token += tokens_[i];
  }
  const Unlocked unlocked;
  try {
    (usable(tier_).*call)(items, layer, deadline_of(timeout));
  } catch (const ItemsError& error) {
    return error;
  }
  return {};
}

/// A step of no sequences knows no shape: nothing is written.
nb::handle Step::out_of(nb::handle out) const {
  return sequences_.empty() ? nb::handle(Py_None) : out;
}

nb::object Step::attend(int layer, nb::handle query, nb::handle row, nb::handle out, bool absorbed,
                        nb::handle selected, Timeout timeout) {
  if (!absorbed && shape_.v_head_dim == 0 && !sequences_.empty()) {
    fail(ErrorCode::kFailedPrecondition, "the pool has no weights: its queries come absorbed");
  }
  const Inputs inputs =
      read_inputs(query, row, selected, absorbed ? shape_.latent_dim() : shape_.unabsorbed_width());
  const StateShape state{.heads = shape_.heads,
                         .width = absorbed ? shape_.kv_lora_rank : shape_.v_head_dim};
  const std::size_t floats = state.record_floats();
  const std::int64_t shape[] = {total_, static_cast<std::int64_t>(floats)};
  const Buffer buffer = output_buffer(out_of(out), "out", shape);
  const auto failed = run(absorbed ? &TierClient::attend : &TierClient::attend_unabsorbed, layer,
                          inputs, buffer.data, floats, timeout);
  const auto heads = size(state.heads);
  const auto width = size(state.width);
  const auto stride = static_cast<std::int64_t>(floats);
  return given(
      failed,
      nb::make_tuple(view(buffer, 0, {size(total_), heads, width}, {stride, state.width, 1}, query),
                     view(buffer, heads * width, {size(total_), heads}, {stride, 1}, query)));
}

nb::object Step::attend_projected(int layer, nb::handle query, nb::handle row, nb::handle out,
                                  nb::handle selected, Timeout timeout) {
  const Inputs inputs = read_inputs(query, row, selected, shape_.latent_dim());
  const std::int64_t shape[] = {total_, shape_.heads, shape_.v_head_dim};
  const Buffer buffer = output_buffer(out_of(out), "out", shape);
  const std::int64_t floats = shape[1] * shape[2];
  const auto failed =
      run(&TierClient::attend_projected, layer, inputs, buffer.data, size(floats), timeout);
  return given(failed, view(buffer, 0, {size(shape[0]), size(shape[1]), size(shape[2])},
                            {floats, shape[2], 1}, query));
}

nb::object Step::forward(int layer, nb::handle hidden, nb::handle out, Timeout timeout) {
  const std::int64_t shape[] = {total_, shape_.hidden_size};
  Inputs inputs;
  if (!sequences_.empty()) {
    inputs.query = read_array(hidden, {"hidden", DType::kF32, {shape[0], shape[1]}, true});
  }
  const Buffer buffer = output_buffer(out_of(out), "out", shape);
  const auto failed =
      run(&TierClient::forward, layer, inputs, buffer.data, size(shape[1]), timeout);
  return given(failed, view(buffer, 0, {size(shape[0]), size(shape[1])}, {shape[1], 1}, hidden));
}

void Step::accept(std::vector<std::int32_t> tokens) {
  check_open();
  if (tokens.size() != tokens_.size()) {
    fail(ErrorCode::kInvalidArgument, "accepted tokens of {} sequences, the step has {}",
         tokens.size(), tokens_.size());
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] > tokens_[i]) {
      fail(ErrorCode::kInvalidArgument, "sequence {}: {} accepted tokens, expected 0 to {}",
           sequences_[i]->handle.id, tokens[i], tokens_[i]);
    }
  }
  accepted_ = std::move(tokens);
}

void Step::end(const std::vector<std::int32_t>& accepted, Timeout timeout) {
  check_open();
  const Use use(sequences_);
  std::vector<SequenceHandle*> handles;
  std::vector<std::int32_t> of_them;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    if (tokens_[i] == 0) continue;  // no step of it is open
    handles.push_back(&sequences_[i]->handle);
    of_them.push_back(accepted[i]);
    places.push_back(i);
  }
  ended_ = true;
  const Unlocked unlocked;
  try {
    usable(tier_).commit(handles, of_them, deadline_of(timeout));
  } catch (const ItemsError& error) {
    std::vector<ItemFailure> failed(error.failed().begin(), error.failed().end());
    for (ItemFailure& item : failed) item.index = places[item.index];
    throw_if_failed(std::move(failed));
  }
}

void Step::commit(Timeout timeout) {
  end(accepted_, timeout);
}

void Step::abort(Timeout timeout) {
  end(std::vector<std::int32_t>(tokens_.size(), 0), timeout);
}

void Step::leave(const nb::args& raised) {
  if (ended_) return;
  if (raised[0].is_none()) return commit({});
  // The caller gets the block's own error.
  static_cast<void>(status_of([&] { abort({}); }));
}

void bind_step(nb::module_& module) {
  const auto timeout = [] { return "timeout"_a = nb::none(); };
  module.attr("ArrayT") = nb::type_var("ArrayT");  // results are of the queries' library
  nb::class_<Step>(
      module, "Step",
      "A decode step of some sequences: every layer once, then commit() or abort().\n\n"
      "As a context manager it commits at the end of the block with the accepted tokens, and "
      "aborts\n"
      "where the block raises. T is the number of new tokens of all sequences, one sequence's "
      "after\n"
      "the other's. Arrays are NumPy's, torch's or others that speak DLPack or the buffer "
      "protocol,\n"
      "on the CPU; they are not copied. Results are NumPy arrays, or torch tensors where the "
      "query\n"
      "(the hidden states) is one.")
      .def_prop_ro("tokens", &Step::tokens, "new tokens of each sequence")
      .def_prop_ro("sequences", &Step::objects)
      .def(
          "attend", &Step::attend, "layer"_a, "query"_a.none(), "row"_a.none(),
          "out"_a = nb::none(), nb::kw_only(), "absorbed"_a = true, "selected"_a = nb::none(),
          timeout(),
          nb::sig("def attend(self, layer: int, query: ArrayT, row: typing.Any, "
                  "out: typing.Any = None, *, absorbed: bool = True, "
                  "selected: typing.Any = None, timeout: float | None = None) "
                  "-> tuple[ArrayT, ArrayT]"),
          "Attention of one layer: (o, lse).\n\n"
          "query: [T, H, C + R] of shape.query_dtype, with W_UK absorbed. row: [T, C + R] of\n"
          "shape.row_format, the tokens' own rows. Both may have gaps between tokens, not inside.\n"
          "o: [T, H, C] fp32, before W_UV. lse: [T, H] fp32, natural logarithm. They are views of\n"
          "one buffer [T, H * (C + 1)] that holds for each token o, then lse: `out`, if given.\n"
          "absorbed=False, of a pool with weights: query before W_UK, [T, H, N + R]; o after "
          "W_UV,\n"
          "[T, H, V], in a buffer [T, H * (V + 1)].\n"
          "If some sequences fail, the error's `failed` names them and its `results` is (o, lse).\n"
          "selected: [T, up to shape.topk] int32, of a pool with a topk: the positions that each\n"
          "token attends to, in any order, each once, up to the token's own; -1 is none.")
      .def("attend_projected", &Step::attend_projected, "layer"_a, "query"_a.none(), "row"_a.none(),
           "out"_a = nb::none(), nb::kw_only(), "selected"_a = nb::none(), timeout(),
           nb::sig("def attend_projected(self, layer: int, query: ArrayT, row: typing.Any, "
                   "out: typing.Any = None, *, selected: typing.Any = None, timeout: float | None "
                   "= None) -> ArrayT"),
           "As attend(), of a pool with weights: the heads' values [T, H, V] fp32, after W_UV.")
      .def("forward", &Step::forward, "layer"_a, "hidden"_a.none(), "out"_a = nb::none(),
           nb::kw_only(), timeout(),
           nb::sig("def forward(self, layer: int, hidden: ArrayT, out: typing.Any = None, *, "
                   "timeout: float | None = None) -> ArrayT"),
           "The whole attention module, of a pool with weights: hidden states [T, hidden_size] "
           "fp32\n"
           "in and out.")
      .def("accept", &Step::accept, "tokens"_a,
           "How many of its new tokens each sequence keeps: 0 to its tokens; all if not called.")
      .def(
          "commit", &Step::commit, nb::kw_only(), timeout(),
          "Ends the step; the accepted tokens are part of their sequences, also where others fail.")
      .def("abort", &Step::abort, nb::kw_only(), timeout(), "Ends the step as if it had not been.")
      .def(
          "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> Step"))
      .def("__exit__", [](Step& s, const nb::args& raised) { s.leave(raised); });
}

}  // namespace tributary::python
