#include "deploy/app/flags/shared_flags.h"

#include <fmt/format.h>

#include <bit>
#include <limits>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/base/quote.h"
#include "deploy/app/flags/flags.h"

namespace tributary {
namespace {

constexpr auto kTraceHelp =
    "Requests, one JSON object a line: timestamp (ms), input_length, output_length (tokens). "
    "Without a file, a built-in workload with the lengths of a chat service";

constexpr int kMaxLeafTokens = 1 << 20;
constexpr std::int64_t kMaxRequests = std::int64_t{1} << 40;

DType parse_dtype(const std::string& text) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    if (text == dtype_name(type)) return type;
  }
  fail(ErrorCode::kInvalidArgument, "{} is not bf16 or f32", quote(text));
}

RowFormat parse_row_format(const std::string& text) {
  const auto format = find_row_format(text);
  if (!format) {
    fail(ErrorCode::kInvalidArgument, "{} is not {}", quote(text),
         row_format_names(row_formats(), " or "));
  }
  return *format;
}

int parse_leaf_tokens(const std::string& text) {
  const int tokens = parse_number<int>(text, kPageTokens, kMaxLeafTokens);
  if (!std::has_single_bit(static_cast<unsigned>(tokens))) {
    fail(ErrorCode::kInvalidArgument, "{} is not a power of two from {} to {}", tokens, kPageTokens,
         kMaxLeafTokens);
  }
  return tokens;
}

}  // namespace

std::string parse_text(const std::string& text) {
  if (text.empty()) fail(ErrorCode::kInvalidArgument, "the name is empty");
  return text;
}

void add_switch(CLI::App& app, const std::string& name, bool& target, const std::string& help) {
  app.add_flag_function(
         name, [&target](std::int64_t) { target = true; }, help)
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)
      ->disable_flag_override();
}

void add_text(CLI::App& app, const std::string& name, const std::string& value, std::string& target,
              const std::string& help) {
  add_flag(app, name, value, target, parse_text, help);
}

void add_workers(CLI::App& app, int& workers) {
  add_number(app, "--workers", workers, 1, 1024,
             "Workers, as threads of this process; under mpirun its ranks are the workers", "1");
}

void add_backend(CLI::App& app, std::string& backend, int& threads) {
  add_flag(app, "--backend", "NAME", backend, parse_text,
           "Attention backend, one that `tributary info` lists (default " + backend + ")");
  add_number(app, "--threads", threads, 0, 1024, "Compute threads of each worker",
             "0, its share of the cores");
}

void add_backend_options(CLI::App& app, BackendOptions& options) {
  add_flag(
      app, "--merge-order", "canonical|fast", options.merge_order, parse_merge_order,
      "Of partial results: the same bits whatever the batch and the workers, or, with cuda, as "
      "a device is busiest (default canonical)");
  add_switch(app, "--disable-cuda-graph", options.disable_cuda_graph,
             "With cuda, launch all kernels one by one, none as part of a CUDA graph");
  add_flag(app, "--attend-kernel", "auto|generic|few|many1|many2", options.attend_kernel,
           parse_attend_choice,
           "With cuda, the kernel of attention: by the shape, or this one, while another is broken "
           "or for a measurement (default auto)")
      ->envname("TRIBUTARY_ATTEND_KERNEL");
}

void add_leaf_tokens(CLI::App& app, int& leaf_tokens) {
  add_flag(
      app, "--leaf-tokens", "N", leaf_tokens, parse_leaf_tokens,
      fmt::format("Tokens of a leaf, the unit of computation and placement: a power of two, {} "
                  "or more (default {})",
                  kPageTokens, leaf_tokens));
}

void add_exchange(CLI::App& app, Exchange& exchange) {
  add_flag(app, "--exchange", "auto|all-gather|all-to-all", exchange, parse_exchange,
           "How queries and partial results travel: to every worker, or to those that need them "
           "(default auto, by volume)");
}

void add_max_step(CLI::App& app, double& max_step_ms) {
  add_number(app, "--max-step-ms", max_step_ms, 0.0, 1e6,
             "With spread auto a sequence is cut where a step would be predicted longer than this "
             "and a cut keeps it within; 0 for no bound");
}

void add_costs(CLI::App& app, std::string& costs) {
  add_text(app, "--costs", "NAME|FILE", costs,
           "By what placement weighs attention and exchange: a machine (h100, h200, cpu) or what "
           "`tributary bench --json FILE` measured (default " +
               costs + ")");
}

void add_placement(CLI::App& app, SpreadPolicy& spread, Exchange& exchange, int& leaf_tokens) {
  add_flag(
      app, "--spread", "auto|single|all", spread, parse_spread_policy,
      "Where sequences lie: each on one worker (single), on as many as it has leaves (all), or "
      "as makes rounds short (default auto)");
  add_exchange(app, exchange);
  add_leaf_tokens(app, leaf_tokens);
}

void add_query(CLI::App& app, DType& dtype) {
  add_flag(app, "--query", "bf16|f32", dtype, parse_dtype,
           fmt::format("Type of the queries (default {})", dtype_name(dtype)));
}

void add_rows(CLI::App& app, RowFormat& format) {
  add_flag(app, "--rows", row_format_names(row_formats(), "|"), format, parse_row_format,
           fmt::format("Type of the latent rows (default {})", row_format_name(format)));
}

void add_trace(CLI::App& app, std::optional<std::filesystem::path>& trace, std::int64_t& requests,
               std::uint64_t& seed, std::optional<std::filesystem::path>& json,
               const std::string& shown_requests) {
  add_flag(app, "TRACE", "", trace, parse_text, kTraceHelp);
  add_number(app, "--requests", requests, std::int64_t{0}, kMaxRequests,
             "Only the first N requests; 0 for all of a trace", shown_requests);
  add_number(app, "--seed", seed, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
             "Seed of everything that is generated");
  add_flag(app, "--json", "FILE", json, parse_text, "Write the report to this file as JSON too");
}

void add_shape(CLI::App& app, std::string& shape) {
  add_flag(
      app, "--shape", "NAME|FILE", shape, parse_text,
      "Model shape: one that `tributary info` lists, a file of heads, kv_lora_rank, "
      "qk_rope_head_dim, layers and softmax_scale as JSON, or a model's config.json (default " +
          shape + ")");
}

void add_kv_gib(CLI::App& app, double& kv_gib, const std::string& help) {
  add_number(app, "--kv-gib", kv_gib, 1e-6, 1e5, help);
}

void add_transport(CLI::App& app, TransportChoice& transport, const std::string& help) {
  add_flag(app, "--transport", "auto|ucx|tcp", transport, parse_transport_choice,
           fmt::format("{} (default {})", help, transport_choice_name(transport)));
}

void add_credentials(CLI::App& app, std::string& token_file, std::string& certificate_authority) {
  add_text(app, "--token-file", "FILE", token_file,
           "Bearer token for the control plane (default none)");
  add_text(
      app, "--ca", "FILE", certificate_authority,
      "Certificates to trust, for an https URL and an encrypted data plane, as PEM (default the "
      "system's)");
}

void add_certificate(CLI::App& app, std::string& certificate, std::string& key,
                     const std::string& use) {
  add_text(app, "--tls-certificate", "FILE", certificate,
           fmt::format("Certificate with its chain, as PEM: {} (default none)", use));
  add_text(app, "--tls-key", "FILE", key, "Its key, as PEM");
  app.get_option("--tls-certificate")->needs("--tls-key");
  app.get_option("--tls-key")->needs("--tls-certificate");
}

void add_service(CLI::App& app, ServiceOptions& service, const std::string& help) {
  add_text(app, "--service", "URL", service.url, help);
  add_credentials(app, service.token_file, service.certificate_authority);
  add_certificate(app, service.tls_certificate, service.tls_key, "for workers that ask for one");
  add_number(app, "--call-timeout-ms", service.call_timeout_ms, 1,
             std::numeric_limits<int>::max() / 4, "Deadline of every call to the service");
  add_transport(app, service.transport, "To workers; refuses those that speak another than asked");
  add_switch(app, "--busy-poll", service.busy_poll,
             "Spin while waiting for the service: microseconds less, a core more");
}

void only_without_service(CLI::App& app, std::initializer_list<const char*> names) {
  CLI::Option* service = app.get_option("--service");
  for (const char* name : names) app.get_option(name)->excludes(service);
}

void only_with_service(CLI::App& app, std::initializer_list<const char*> names) {
  CLI::Option* service = app.get_option("--service");
  for (const char* name : names) app.get_option(name)->needs(service);
}

}  // namespace tributary
