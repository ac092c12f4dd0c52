// Lines of tables of options that several structs have, with the same meaning in each
// (core/base/option.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/limits.h"
#include "core/base/option.h"
#include "core/model/model_limits.h"
#include "core/model/row_format.h"
#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"

namespace tributary {

template <class Visitor>
void visit_workers(Visitor& v, int& workers) {
  v(workers, "--workers", {1, 1024},
    "Workers, as threads of this process; under mpirun its ranks are the workers",
    {.shown_default = "1"});
}

/// Where the workers of a command's own pool listen if they are processes.
template <class Visitor>
void visit_addresses(Visitor& v, std::string& listen, std::string& advertise) {
  v(listen, "--listen", "ADDRESS",
    "Under mpirun: address, network (10.0.0.0/24) or device (eth0) on which workers listen",
    {.shown_default = "the network that joins them all to the first one"});
  v(advertise, "--advertise", "ADDRESS",
    "Under mpirun: address of a worker that the others are told instead of --listen");
}

template <class Visitor>
void visit_backend(Visitor& v, std::string& backend, int& threads) {
  v(backend, "--backend", "NAME", "Attention backend, one that `tributary info` lists");
  v(threads, "--threads", {0, 1024}, "Compute threads of each worker",
    {.shown_default = "0, its share of the cores"});
}

template <class Visitor>
void visit_leaf_tokens(Visitor& v, int& leaf_tokens, std::string_view shown_default = {}) {
  v(leaf_tokens, "--leaf-tokens", PowersOfTwo{kPageTokens, 1 << 20},
    "Tokens of a leaf, the unit of computation and placement: a power of two, 64 or more",
    {.shown_default = shown_default});
}
/// Where 0 stands for default_leaf_tokens().
template <class Visitor>
void visit_pool_leaf_tokens(Visitor& v, int& leaf_tokens) {
  visit_leaf_tokens(v, leaf_tokens, "2048, or 32768 where tokens select rows");
}

template <class Visitor>
void visit_exchange(Visitor& v, Exchange& exchange) {
  v(exchange, "--exchange", "auto|all-gather|all-to-all",
    "How queries and partial results travel: to every worker, or to those that need them",
    {.shown_default = "auto, the one predicted to be shorter"});
}

/// The constants that the cost model takes, see find_machine().
template <class Visitor>
void visit_costs(Visitor& v, std::string& costs) {
  v(costs, "--costs", "NAME|FILE",
    "By what placement weighs attention and exchange: a machine (h100, h200, cpu) or what "
    "`tributary bench --json FILE` measured");
}

template <class Visitor>
void visit_query(Visitor& v, DType& dtype) {
  v(dtype, "--query", "bf16|f32", "Type of the queries");
}

/// -1 stands for the shape's.
template <class Visitor>
void visit_topk(Visitor& v, int& topk) {
  v(topk, "--topk", {0, kMaxTopk},
    "Sparse attention: a token attends to the rows that its client selects, at most N; 0, to all",
    {.shown_default = "the shape's"});
}

template <class Visitor>
void visit_rows(Visitor& v, RowFormat& format) {
  v(format, "--rows", row_format_names(row_formats(), "|"),
    "Format of the latent rows; fp8@SCALE for a scale of all values other than 1");
}

template <class Visitor>
void visit_shape(Visitor& v, std::string& shape) {
  v(shape, "--shape", "NAME|FILE",
    "Model shape: one that `tributary info` lists, a file of heads, kv_lora_rank, "
    "qk_rope_head_dim, layers and softmax_scale as JSON, or a model's config.json");
}

template <class Visitor>
void visit_kv_gib(Visitor& v, double& kv_gib, std::string_view help) {
  v(kv_gib, "--kv-gib", {1e-6, 1e5}, help);
}

/// The trace and the report of `replay` and `simulate`.
template <class Visitor>
void visit_trace(Visitor& v, std::optional<std::filesystem::path>& trace, std::int64_t& requests,
                 std::uint64_t& seed, std::optional<std::filesystem::path>& json,
                 std::string_view shown_requests = {}) {
  v(trace, "TRACE", "",
    "Requests, one JSON object a line: timestamp (ms), input_length, output_length (tokens). "
    "Without a file, a built-in workload with the lengths of a chat service");
  v(requests, "--requests", {0, std::int64_t{1} << 40},
    "Only the first N requests; 0 for all of a trace", {.shown_default = shown_requests});
  v(seed, "--seed", {0, std::numeric_limits<std::uint64_t>::max()},
    "Seed of everything that is generated");
  v(json, "--json", "FILE", "Write the report to this file as JSON too");
}

}  // namespace tributary
