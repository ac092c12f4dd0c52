#include "deploy/cli/options.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <limits>

#include "core/base/error.h"
#include "deploy/info/info.h"
#include "deploy/runtime/backends.h"

namespace tributary {
namespace {

constexpr auto kDescription =
    "Tributary: decode attention for models with Multi-head Latent Attention, over a latent KV\n"
    "cache that is spread along the sequence. The same bits on any number of workers.";

/// An option whose text is turned into a value by `parse`; its Error becomes the flag's.
template <typename Target, typename Parse>
CLI::Option* parsed_option(CLI::App& app, const std::string& name, Target& target, Parse parse,
                           const std::string& help, const std::string& shown_default) {
  return app
      .add_option_function<std::string>(
          name,
          [&target, parse, name](const std::string& text) {
            try {
              target = parse(text);
            } catch (const Error& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          help)
      ->default_str(shown_default);
}

DType parse_dtype(const std::string& text) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    if (text == dtype_name(type)) return type;
  }
  fail(ErrorCode::kInvalidArgument, "'{}', expected bf16 or f32", text);
}

void add_workers(CLI::App& app, int& workers) {
  app.add_option("--workers", workers,
                 "Workers, as threads of this process; under mpirun its ranks are the workers")
      ->check(CLI::Range(1, 1024));
}

void add_backend(CLI::App& app, std::string& backend, int& threads) {
  app.add_option("--backend", backend, "Attention backend; `tributary info` lists them")
      ->capture_default_str();
  app.add_option("--threads", threads, "Compute threads of each worker (0: its share of the cores)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

void add_placement(CLI::App& app, SpreadPolicy& spread, Exchange& exchange, int& leaf_tokens) {
  parsed_option(app, "--spread", spread, parse_spread_policy,
                "Where sequences lie: auto, single (one worker each) or all", "auto");
  parsed_option(app, "--exchange", exchange, parse_exchange,
                "How partial states travel: auto, all-gather or all-to-all", "auto");
  app.add_option("--leaf-tokens", leaf_tokens,
                 "Tokens of a leaf, the unit of computation and placement: a power of two >= 64")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
}

void add_trace(CLI::App& app, std::optional<std::filesystem::path>& trace, std::int64_t& requests,
               std::uint64_t& seed, std::optional<std::filesystem::path>& json) {
  app.add_option("trace", trace,
                 "Requests as JSON lines with timestamp (ms), input_length, output_length; without "
                 "one, a built-in workload with the lengths of a chat service")
      ->check(CLI::ExistingFile);
  app.add_option("--requests", requests, "Only the first N requests (0: all)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--seed", seed, "Seed of everything that is generated")->capture_default_str();
  app.add_option("--json", json, "Write the report to this file as JSON");
}

CLI::App* add_verify(CLI::App& app, VerifyOptions& o) {
  auto* sub = app.add_subcommand(
      "verify", "Run golden files through prefill and decode, and compare with their values");
  sub->add_option("files", o.files, "Golden .safetensors files")
      ->required()
      ->check(CLI::ExistingFile);
  add_workers(*sub, o.workers);
  add_backend(*sub, o.backend, o.threads);
  parsed_option(*sub, "--query", o.query_dtype, parse_dtype, "Type of the queries: f32 or bf16",
                "f32");
  sub->add_option("--leaf-tokens", o.leaf_tokens, "Tokens of a leaf: a power of two >= 64")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  return sub;
}

CLI::App* add_replay(CLI::App& app, ReplayOptions& o) {
  auto* sub = app.add_subcommand(
      "replay", "Decode a request trace with continuous batching (attention only, generated rows)");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json);
  add_workers(*sub, o.workers);
  add_backend(*sub, o.backend, o.threads);
  add_placement(*sub, o.spread, o.exchange, o.leaf_tokens);
  sub->add_option("--shape", o.shape, "Model shape; `tributary info` lists them")
      ->capture_default_str();
  sub->add_option("--layers", o.layers, "Layers that every step runs")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  sub->add_option("--heads", o.heads, "Attention heads (0: the shape's)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  sub->add_option("--length-scale", o.length_scale, "Multiply prompt and output lengths by this")
      ->check(CLI::Range(1e-6, 1e3))
      ->capture_default_str();
  sub->add_option("--kv-gib", o.kv_gib, "Page memory of each worker in GiB")
      ->check(CLI::Range(1e-6, 1e5))
      ->capture_default_str();
  sub->add_option("--max-batch", o.max_batch, "Sequences decoding at the same time, at most")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  sub->add_option("--tokens-per-step", o.tokens_per_step,
                  "New tokens of a sequence in one step, as with speculative decoding")
      ->check(CLI::Range(1, kMaxStepTokens))
      ->capture_default_str();
  parsed_option(*sub, "--rows", o.row_dtype, parse_dtype, "Type of the latent rows: bf16 or f32",
                "bf16");
  parsed_option(*sub, "--query", o.query_dtype, parse_dtype, "Type of the queries: bf16 or f32",
                "bf16");
  sub->add_option("--speed", o.speed,
                  "Arrivals at this many times the trace's pace (0: as capacity allows)")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  sub->add_option("--canary-rate", o.canary_rate,
                  "Share of outputs that are recomputed in float64 at the end")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  sub->add_option("--round-timeout-ms", o.round_timeout_ms,
                  "Deadline of a round; a worker that misses it ends the pool")
      ->check(CLI::Range(1, std::numeric_limits<int>::max() / 2))
      ->capture_default_str();
  return sub;
}

CLI::App* add_simulate(CLI::App& app, SimulateOptions& o) {
  auto* sub = app.add_subcommand(
      "simulate", "Placement and plans of a pool of any size on a trace, without the arithmetic");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json);
  sub->add_option("--workers", o.workers, "Workers of the pool")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  sub->add_option("--running", o.running, "Sequences decoding at the same time")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  add_placement(*sub, o.spread, o.exchange, o.leaf_tokens);
  sub->add_option("--shape", o.shape, "Model shape, for the bytes")->capture_default_str();
  sub->add_option("--kv-gib", o.kv_gib, "Page memory of each worker in GiB, for one layer")
      ->check(CLI::Range(1e-6, 1e5))
      ->capture_default_str();
  return sub;
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv) {
  ParseResult result;
  Options& o = result.options;
  CLI::App app(kDescription, "tributary");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string(version()));
  app.get_formatter()->column_width(34);
  const std::pair<CLI::App*, Command> commands[] = {
      {add_verify(app, o.verify), Command::kVerify},
      {add_replay(app, o.replay), Command::kReplay},
      {add_simulate(app, o.simulate), Command::kSimulate},
      {app.add_subcommand("info",
                          "Version, instruction sets, backends, communicators and model shapes"),
       Command::kInfo},
  };
  try {
    app.parse(argc, argv);
    for (const auto& [sub, command] : commands) {
      if (sub->parsed()) o.command = command;
    }
  } catch (const CLI::CallForHelp&) {
    result.exit = true;
    result.text = app.help();
    for (const auto& [sub, command] : commands) {
      if (sub->parsed()) result.text = sub->help("tributary");
    }
  } catch (const CLI::CallForVersion& call) {
    result.exit = true;
    result.text = std::string(call.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    result.exit = true;
    result.exit_status = 2;
    result.text = error.what();
  }
  return result;
}

}  // namespace tributary
