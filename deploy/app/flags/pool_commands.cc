// Flags of the commands that run or simulate a pool by themselves.
#include <limits>

#include "core/base/limits.h"
#include "deploy/app/flags/flags.h"
#include "deploy/app/flags/shared_flags.h"
#include "deploy/app/flags/subcommands.h"

namespace tributary {
namespace {

constexpr auto kServiceHelp =
    "Use a running service, by its control plane's URL, instead of a pool of this program's own";

/// Where the workers of a command's own pool listen, where they are processes.
void add_addresses(CLI::App& app, std::string& listen, std::string& advertise) {
  add_text(app, "--listen", "ADDRESS", listen,
           "Under mpirun: address, network (10.0.0.0/24) or device (eth0) on which workers listen "
           "(default the network that joins them all to the first one)");
  add_text(app, "--advertise", "ADDRESS", advertise,
           "Under mpirun: address of a worker that the others are told instead of --listen");
}

}  // namespace

CLI::App* add_verify(CLI::App& app, VerifyOptions& o) {
  auto* sub = app.add_subcommand(
      "verify", "Run golden files through prefill and decode, and compare with their values");
  sub->add_option("FILE", o.files, "Golden files (.safetensors)")->required();
  add_service(*sub, o.service, kServiceHelp);
  add_switch(*sub, "--attend-only", o.attend_only,
             "Do not ask the service for `forward`: its weights are other than the files'");
  add_workers(*sub, o.workers);
  add_addresses(*sub, o.listen, o.advertise);
  add_backend(*sub, o.backend, o.threads);
  add_backend_options(*sub, o.backend_options);
  add_query(*sub, o.query_dtype);
  add_leaf_tokens(*sub, o.leaf_tokens);
  only_without_service(
      *sub, {"--workers", "--listen", "--advertise", "--merge-order", "--disable-cuda-graph",
             "--attend-kernel", "--query", "--leaf-tokens"});
  only_with_service(*sub, {"--attend-only", "--token-file", "--ca", "--tls-certificate",
                           "--tls-key", "--call-timeout-ms", "--transport", "--busy-poll"});
  return sub;
}

CLI::App* add_replay(CLI::App& app, ReplayOptions& o) {
  auto* sub = app.add_subcommand(
      "replay", "Decode a request trace with continuous batching (attention only, generated rows)");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json, fmt::format("{}", o.requests));
  add_service(*sub, o.service, kServiceHelp);
  add_number(*sub, "--clients", o.clients, 1, 64,
             "Clients of the service, each with its share of the requests and of the batch");
  add_workers(*sub, o.workers);
  add_addresses(*sub, o.listen, o.advertise);
  add_backend(*sub, o.backend, o.threads);
  add_backend_options(*sub, o.backend_options);
  add_placement(*sub, o.spread, o.exchange, o.leaf_tokens);
  add_costs(*sub, o.costs);
  add_shape(*sub, o.shape);
  add_number(*sub, "--layers", o.layers, 1, 1024, "Layers that every step runs");
  add_number(*sub, "--heads", o.heads, 0, 1024, "Attention heads", "0, the shape's");
  add_number(*sub, "--length-scale", o.length_scale, 1e-6, 1e3,
             "Multiply prompt and output lengths by this");
  add_kv_gib(*sub, o.kv_gib, "Page memory of each worker in GiB");
  add_number(*sub, "--max-batch", o.max_batch, 1, 1 << 20,
             "Sequences decoding at the same time, at most");
  add_number(*sub, "--tokens-per-step", o.tokens_per_step, 1, kMaxStepTokens,
             "New tokens of a sequence in one step, as with speculative decoding");
  add_rows(*sub, o.row_format);
  add_query(*sub, o.query_dtype);
  add_number(*sub, "--speed", o.speed, 0.0, 1e9, "Arrivals at this many times the trace's pace",
             "0, as capacity allows");
  add_number(*sub, "--canary-rate", o.canary_rate, 0.0, 1.0,
             "Share of outputs that are recomputed in float64 at the end");
  add_number(*sub, "--round-timeout-ms", o.round_timeout_ms, 1, std::numeric_limits<int>::max() / 4,
             "Deadline of a round; a worker that misses it ends the pool");
  only_without_service(*sub, {"--workers", "--listen", "--advertise", "--backend", "--threads",
                              "--merge-order", "--disable-cuda-graph", "--attend-kernel",
                              "--exchange", "--leaf-tokens", "--costs", "--shape", "--layers",
                              "--heads", "--kv-gib", "--rows", "--query", "--round-timeout-ms"});
  only_with_service(*sub, {"--clients", "--token-file", "--ca", "--tls-certificate", "--tls-key",
                           "--call-timeout-ms", "--transport", "--busy-poll"});
  return sub;
}

CLI::App* add_simulate(CLI::App& app, SimulateOptions& o) {
  auto* sub = app.add_subcommand("simulate",
                                 "A tier of any size under a trace's arrivals, in predicted time");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json, "0; 2000 of the built-in workload");
  add_flag(*sub, "--svg", "FILE", o.svg, parse_text,
           "Draw p99 time per output token against the rate, as an SVG file");
  add_number(*sub, "--length-scale", o.length_scale, 1e-6, 1e3,
             "Multiply prompt and output lengths by this");
  add_number(*sub, "--pools", o.pools, 1, 65'536, "Pools of the tier");
  add_number(*sub, "--workers", o.workers, 1, 1024, "Workers of each pool");
  add_number(*sub, "--workers-per-node", o.workers_per_node, 1, 1024, "Workers (GPUs) of a node");
  add_kv_gib(*sub, o.kv_gib, "Page memory of each worker in GiB, all layers");
  add_costs(*sub, o.costs);
  add_shape(*sub, o.shape);
  add_exchange(*sub, o.exchange);
  add_leaf_tokens(*sub, o.leaf_tokens);
  add_number(*sub, "--other-ms", o.other_ms, 0.0, 1e6,
             "Time of a step outside the tier: the rest of the model");
  add_max_step(*sub, o.max_step_ms);
  add_number(*sub, "--move-bytes-per-s", o.move_bytes_per_s, 0.0, 1e12,
             "Leaves of sequences with spread auto move between workers where that pays, at this "
             "rate at most in each pool; 0 for never");
  add_number(*sub, "--prefill-servers", o.prefill.servers, 0, 1 << 20,
             "Servers of the prefill tier", "0, prompts are ready when they arrive");
  add_number(*sub, "--prefill-tokens-s", o.prefill.tokens_per_second, 1e-3, 1e12,
             "Prompt tokens a second of each prefill server");
  add_flag(*sub, "--spread", "LIST", o.spread, parse_spread_list,
           "Policies to compare: each sequence on one worker (single), on as many as it has leaves "
           "(all), or as makes rounds short (default " +
               flag_text(o.spread) + ")");
  add_flag(*sub, "--rate", "LIST", o.rates, parse_rate_list,
           "Requests a second, each a run (default: the trace's own pace)");
  add_number(*sub, "--running", o.running, std::int64_t{0}, std::int64_t{1} << 24,
             "Requests in flight at any time, instead of arrivals at a rate", "0, a rate");
  add_switch(*sub, "--search", o.search,
             "Find the highest rate that meets the bounds without a refusal, by bisection");
  add_number(*sub, "--tpot-ms", o.tpot_ms, 1e-3, 1e6,
             "Bound on the 99th percentile of the time per output token");
  add_number(*sub, "--wait-ms", o.wait_ms, 0.0, 1e9,
             "Bound of the search on the 99th percentile of the wait for room in a pool");
  add_number(*sub, "--warmup-s", o.warmup_s, 0.0, 1e6, "Simulated time before the measurement");
  add_number(*sub, "--measure-s", o.measure_s, 1e-3, 1e6, "Simulated time that is measured");
  add_number(*sub, "--max-waiting", o.max_waiting, std::int64_t{1}, std::int64_t{1} << 24,
             "Requests that may wait for room; more are refused");
  add_number(*sub, "--check-every", o.check_every, std::int64_t{0}, std::int64_t{1} << 40,
             "Check one step in N of each pool against its full plan", "500; 0, none");
  return sub;
}

}  // namespace tributary
