#include "deploy/python/sequence.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>

#include "core/base/deadline.h"
#include "deploy/python/arrays.h"
#include "deploy/python/rows.h"

namespace tributary::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using Timeout = std::optional<double>;

void push(Sequence& sequence, int layer, std::int64_t begin, nb::handle rows, Timeout timeout) {
  const Array array = read_rows(rows, "rows", sequence.handle.shape, -1, /*gaps=*/false);
  const Use use(sequence, Sharing::kReaders);
  const Unlocked unlocked;
  sequence.tier().push_rows(sequence.handle, layer, begin, {array.data, array.bytes},
                            deadline_of(timeout));
}

nb::object pull(Sequence& sequence, int layer, std::int64_t begin, std::int64_t end, nb::handle out,
                Timeout timeout) {
  const Use use(sequence, Sharing::kReaders);
  PulledInto into(out, sequence.handle, begin, end);
  const PulledRows part{
      .sequence = &sequence.handle, .layer = layer, .begin = begin, .rows = into.stored()};
  {
    const Unlocked unlocked;
    sequence.tier().pull_rows(std::span(&part, 1), deadline_of(timeout));
    into.decode();
  }
  return into.array();
}

void wait_ready(Sequence& sequence, Timeout timeout) {
  const Use use(sequence, Sharing::kReaders);
  const Unlocked unlocked;
  sequence.tier().wait_ready(sequence.handle, deadline_of(timeout));
}

void extend(Sequence& sequence, std::int64_t max_new_tokens, Timeout timeout) {
  const Use use(sequence);
  const Unlocked unlocked;
  sequence.tier().extend(sequence.handle, max_new_tokens, deadline_of(timeout));
}

void truncate(Sequence& sequence, std::int64_t length, Timeout timeout) {
  const Use use(sequence);
  const Unlocked unlocked;
  sequence.tier().truncate(sequence.handle, length, deadline_of(timeout));
}

void refresh(Sequence& sequence, Timeout timeout) {
  const Use use(sequence);
  SequenceHandle now;
  {
    const Unlocked unlocked;
    now = sequence.tier().query(sequence.handle, deadline_of(timeout));
  }
  sequence.handle = std::move(now);  // under the lock: properties are read from any thread
}

nb::list to_list(const std::vector<Extent>& extents) {
  nb::list list;
  for (const Extent& e : extents) list.append(nb::make_tuple(e.begin, e.end, e.rank));
  return list;
}

void free(Sequence& sequence, const std::optional<Prefix>& prefix, Timeout timeout) {
  const Use use(sequence);
  const Unlocked unlocked;
  sequence.tier().free(sequence.handle, deadline_of(timeout), prefix.value_or(Prefix{}));
}

/// If the block failed, its caller gets that error. A sequence that is not freed here ends with its
/// lease, unless it is renewed.
void leave(Sequence& sequence, const nb::args& raised) {
  if (raised[0].is_none()) return free(sequence, {}, {});
  static_cast<void>(status_of([&] { free(sequence, {}, {}); }));
}

std::string describe(const Sequence& sequence) {
  const SequenceHandle& handle = sequence.handle;
  return fmt::format("<tributary.Sequence {} of pool {}: {} tokens, epoch {}{}>", handle.id,
                     handle.pool, handle.length, handle.epoch,
                     sequence.shared_tier() ? "" : ", not adopted");
}

void bind_shape(nb::module_& module) {
  nb::class_<PoolShape>(module, "Shape",
                        "What a pool serves: H heads, C kv_lora_rank, R qk_rope_head_dim, ...")
      .def_ro("heads", &PoolShape::heads, "H, query heads")
      .def_ro("kv_lora_rank", &PoolShape::kv_lora_rank, "C, values of a row that are attended to")
      .def_ro("qk_rope_head_dim", &PoolShape::qk_rope_head_dim,
              "R, values of a row that only score; 0 or more")
      .def_prop_ro("latent_dim", &PoolShape::latent_dim, "C + R, values of a row")
      .def_ro("qk_nope_head_dim", &PoolShape::qk_nope_head_dim,
              "N; 0: the pool has no weights to project with")
      .def_ro("layers", &PoolShape::layers)
      .def_ro("softmax_scale", &PoolShape::softmax_scale, "of the scores")
      .def_ro("v_head_dim", &PoolShape::v_head_dim, "V; 0: the pool has no weights to project with")
      .def_ro("hidden_size", &PoolShape::hidden_size,
              "0: the pool has no model's weights, and serves no forward()")
      .def_ro("latent_norm_eps", &PoolShape::latent_norm_eps,
              "of the norms of the latents; 0: the pool has no model's weights")
      .def_ro("leaf_tokens", &PoolShape::leaf_tokens, "tokens of a leaf")
      .def_ro("topk", &PoolShape::topk, "positions that a token selects at most; 0: all rows")
      .def_prop_ro(
          "query_dtype",
          [](const PoolShape& shape) { return std::string(dtype_name(shape.query_dtype)); },
          "of queries: 'f32' or 'bf16'")
      .def_prop_ro(
          "row_format", [](const PoolShape& shape) { return row_format_name(shape.row_format); },
          "of rows: 'bf16', 'f32', 'fp8_ds_mla', 'fp8' or, with another scale than 1, 'fp8@0.5'")
      .def_prop_ro(
          "row_values",
          [](const PoolShape& shape) {
            return std::string(dtype_name(row_values(shape.row_format)));
          },
          "the type in which the values of a row are exact: 'f32' or 'bf16'")
      .def("__eq__", [](const PoolShape& a, const PoolShape& b) { return a == b; })
      .def("__hash__", [](const PoolShape& shape) {
        return std::hash<int>()(shape.heads * 31 + shape.kv_lora_rank);
      });
}

}  // namespace

TierClient& Sequence::tier() const {
  if (!tier_) {
    fail(ErrorCode::kFailedPrecondition,
         "sequence {}: no client has it yet: client.adopt(sequence)", handle.id);
  }
  return usable(tier_);
}

Use::Use(std::span<Sequence* const> sequences, Sharing sharing) : sharing_(sharing) {
  taken_.reserve(sequences.size());
  for (Sequence* sequence : sequences) take(*sequence);
}

Use::Use(Sequence& sequence, Sharing sharing) : sharing_(sharing) {
  taken_.reserve(1);
  take(sequence);
}

Use::~Use() {
  give_back();
}

void Use::take(Sequence& sequence) {
  const bool free = sharing_ == Sharing::kAlone ? sequence.in_use_.try_lock()
                                                : sequence.in_use_.try_lock_shared();
  if (!free) {
    give_back();
    fail(ErrorCode::kFailedPrecondition, "sequence {}: another call uses it now", sequence.id);
  }
  taken_.push_back(&sequence);
}

void Use::give_back() noexcept {
  for (Sequence* sequence : taken_) {
    sharing_ == Sharing::kAlone ? sequence->in_use_.unlock() : sequence->in_use_.unlock_shared();
  }
}

std::optional<Deadline> deadline_of(std::optional<double> timeout) {
  // The limit is a year, which fits the clock's own type.
  constexpr double kLongestS = 365.0 * 24 * 3600;
  if (!timeout) return {};
  if (!(*timeout > 0) || *timeout > kLongestS) {
    fail(ErrorCode::kInvalidArgument, "timeout {} s: expected more than 0, at most {}", *timeout,
         kLongestS);
  }
  return Deadline::after(
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*timeout)));
}

namespace {

/// As many tokens at most as the parent, unless the caller says otherwise.
std::unique_ptr<Sequence> fork(Sequence& parent, std::optional<std::int64_t> length,
                               std::optional<std::int64_t> max_new_tokens,
                               std::optional<std::int64_t> prompt_tokens,
                               const std::optional<Prefix>& prefix, std::optional<double> timeout) {
  const Use use(parent);
  const SharedTier kept = parent.shared_tier();
  TierClient& tier = parent.tier();
  const SequenceHandle& handle = parent.handle;
  const std::int64_t rows = length.value_or(handle.length);
  const std::int64_t prompt = prompt_tokens.value_or(rows);
  const std::int64_t room = handle.prompt_tokens + handle.max_new_tokens - prompt;
  const AdmitRequest request{
      .prompt_tokens = prompt,
      .max_new_tokens = max_new_tokens.value_or(std::max<std::int64_t>(room, 0)),
      .prefix = prefix.value_or(Prefix{}),
      .parent = parent_of(handle, rows)};
  SequenceHandle forked;
  {
    const Unlocked unlocked;
    forked = tier.admit(request, deadline_of(timeout));
  }
  return std::make_unique<Sequence>(kept, std::move(forked));
}

}  // namespace

void bind_sequence(nb::module_& module) {
  bind_shape(module);
  nb::class_<Sequence>(
      module, "Sequence",
      "A running sequence of a tier. As a context manager it is freed at the end of the block.\n\n"
      "One call at a time uses it, but for push(), pull() and wait_ready(), which may come from\n"
      "several threads. It can be pickled: another process takes it with Client.adopt(). Calls "
      "raise\n"
      "tributary.Error; `timeout` is in seconds, None: the client's.")
      .def_prop_ro("id", [](const Sequence& s) { return s.id; })
      .def_prop_ro(
          "pool", [](const Sequence& s) { return s.handle.pool; }, "name of its pool")
      .def_prop_ro("shape", [](const Sequence& s) { return s.handle.shape; })
      .def_prop_ro(
          "length", [](const Sequence& s) { return s.handle.length; },
          "tokens that are part of it: the prompt's, then with every commit more")
      .def_prop_ro(
          "epoch", [](const Sequence& s) { return s.handle.epoch; },
          "+1 with each truncation, and where rows were lost")
      .def_prop_ro("prompt_tokens", [](const Sequence& s) { return s.handle.prompt_tokens; })
      .def_prop_ro(
          "present_tokens", [](const Sequence& s) { return s.handle.present_tokens; },
          "Rows of the prompt that were there at admission: push from there on")
      .def_prop_ro("max_new_tokens", [](const Sequence& s) { return s.handle.max_new_tokens; })
      .def_prop_ro(
          "workers", [](const Sequence& s) { return s.handle.addresses; },
          "addresses of its pool's workers, by rank")
      .def_prop_ro(
          "extents", [](const Sequence& s) { return to_list(s.handle.extents); },
          nb::sig("def extents(self) -> list[tuple[int, int, int]]"),
          "(begin, end, rank): which worker gets which tokens of the prompt; after refresh(), "
          "which\n"
          "holds which of the `length` tokens that there are now")
      .def_prop_ro(
          "lost", [](const Sequence& s) { return to_list(s.handle.lost); },
          nb::sig("def lost(self) -> list[tuple[int, int, int]]"),
          "(begin, end, rank), after refresh(): tokens whose rows went with a worker and are to be "
          "pushed\n"
          "again, each of these in a push of its own; rank -1: they wait for room, refresh() again")
      .def("push", &push, "layer"_a, "begin"_a, "rows"_a.none(), nb::kw_only(),
           "timeout"_a = nb::none(),
           nb::sig("def push(self, layer: int, begin: int, rows: typing.Any, *, "
                   "timeout: float | None = None) -> None"),
           "Rows of the prompt's positions begin, begin + 1, ... of one layer.\n\n"
           "rows: [n, C + R] in shape.row_format, C values of c_kv, then R of k_pe, without gaps;\n"
           "of FP8 [n, 656 or 576] uint8 as they are stored, or fp32 or bf16, which are encoded.\n"
           "In any order, from any number of threads; returns when every owner has acknowledged. "
           "The\n"
           "same call may be repeated: what has arrived is acknowledged again.")
      .def("pull", &pull, "layer"_a, "begin"_a, "end"_a, "out"_a = nb::none(), nb::kw_only(),
           "timeout"_a = nb::none(),
           nb::sig("def pull(self, layer: int, begin: int, end: int, out: typing.Any = None, *, "
                   "timeout: float | None = None) -> typing.Any"),
           "Rows begin .. end - 1 of one layer, bit for bit as they are stored: of the prompt, as "
           "soon\n"
           "as they have been pushed, and of committed tokens.\n\n"
           "out: as the rows of push(), without gaps, written in place (codes are decoded for fp32 "
           "and\n"
           "bf16); None: a new array of NumPy with the rows as they are stored (bf16 as its bits,\n"
           "uint16). Returns it.")
      .def("wait_ready", &wait_ready, nb::kw_only(), "timeout"_a = nb::none(),
           "After the last push(): returns when the whole prompt has arrived.")
      .def("extend", &extend, "max_new_tokens"_a, nb::kw_only(), "timeout"_a = nb::none(),
           "Makes room for that many tokens after the prompt, where admission reserved less.\n\n"
           "Raises PoolFull where there is no room now, TooLarge where there never is.")
      .def(
          "fork", &fork, "length"_a = nb::none(), "max_new_tokens"_a = nb::none(), nb::kw_only(),
          "prompt_tokens"_a = nb::none(), "prefix"_a = nb::none(), "timeout"_a = nb::none(),
          nb::sig("def fork(self, length: int | None = None, max_new_tokens: int | None = None, *, "
                  "prompt_tokens: int | None = None, prefix: Prefix | None = None, "
                  "timeout: float | None = None) -> Sequence"),
          "A new sequence that begins with this one's first `length` rows (None: all), which are "
          "not\n"
          "copied but for the last page of 64. It has a lease of its own, and lies where this one "
          "does.\n\n"
          "prompt_tokens: more than `length`: rows from there on are pushed, as present_tokens "
          "says.\n"
          "max_new_tokens: None: what this one's room leaves. Raises FailedPrecondition while rows "
          "of\n"
          "this one's prompt are missing, PoolFull where there is no room now.")
      .def("truncate", &truncate, "length"_a, nb::kw_only(), "timeout"_a = nb::none(),
           "Drops the rows from `length` on, between steps.")
      .def("refresh", &refresh, nb::kw_only(), "timeout"_a = nb::none(),
           "Reads length, epoch, extents and lost again from the pool: after WorkerLost too. With "
           "another\n"
           "epoch an open step has ended.")
      .def("free", &free, nb::kw_only(), "prefix"_a = nb::none(), "timeout"_a = nb::none(),
           "Ends the sequence; not an error if it has ended. prefix: a Prefix with the keys of all "
           "its\n"
           "full blocks; those behind the prompt's get their names, for the next one that begins "
           "so.")
      .def(
          "to_json", [](const Sequence& s) { return to_json(s.handle); },
          "As the HTTP interface writes it; holds the sequence's token.")
      .def_static(
          "from_json",
          [](const std::string& text) {
            return std::make_unique<Sequence>(SharedTier(), parse_sequence_handle(text));
          },
          "text"_a, "What to_json() wrote, here or in C++; Client.adopt() takes it.")
      .def("__getstate__", [](const Sequence& s) { return to_json(s.handle); })
      .def("__setstate__",
           [](Sequence* place, const std::string& text) {
             new (place) Sequence(SharedTier(), parse_sequence_handle(text));
           })
      .def(
          "__enter__", [](nb::object self) { return self; },
          nb::sig("def __enter__(self) -> Sequence"))
      .def("__exit__", [](Sequence& s, const nb::args& raised) { leave(s, raised); })
      .def("__repr__", &describe);
}

}  // namespace tributary::python
