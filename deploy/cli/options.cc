#include "deploy/cli/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/cli/flags.h"
#include "deploy/cli/help_format.h"
#include "deploy/info/info.h"

namespace tributary {
namespace {

constexpr auto kDescription =
    "Tributary: decode attention for models with Multi-head Latent Attention, over a latent KV\n"
    "cache that is spread along the sequence. The same bits on any number of workers.";
constexpr auto kFooter =
    "`tributary COMMAND --help` lists a command's options. Started by mpirun, verify and replay "
    "run "
    "on\n"
    "its ranks as one pool.\n"
    "Exit status: 0 done, 1 failed (verify: a value is out of bounds), 2 bad flags or files.";
constexpr auto kTraceHelp =
    "Requests, one JSON object a line: timestamp (ms), input_length, output_length (tokens). "
    "Without "
    "a file, a built-in workload with the lengths of a chat service";

constexpr int kMaxLeafTokens = 1 << 20;
constexpr std::int64_t kMaxRequests = std::int64_t{1} << 40;

DType parse_dtype(const std::string& text) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    if (text == dtype_name(type)) return type;
  }
  fail(ErrorCode::kInvalidArgument, "{} is not bf16 or f32", quote(text));
}

int parse_leaf_tokens(const std::string& text) {
  const int tokens = parse_number<int>(text, kPageTokens, kMaxLeafTokens);
  if (!std::has_single_bit(static_cast<unsigned>(tokens))) {
    fail(ErrorCode::kInvalidArgument, "{} is not a power of two from {} to {}", tokens, kPageTokens,
         kMaxLeafTokens);
  }
  return tokens;
}

std::string parse_text(const std::string& text) {
  if (text.empty()) fail(ErrorCode::kInvalidArgument, "the name is empty");
  return text;
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

void add_leaf_tokens(CLI::App& app, int& leaf_tokens) {
  add_flag(
      app, "--leaf-tokens", "N", leaf_tokens, parse_leaf_tokens,
      fmt::format("Tokens of a leaf, the unit of computation and placement: a power of two, {} "
                  "or more (default {})",
                  kPageTokens, leaf_tokens));
}

void add_placement(CLI::App& app, SpreadPolicy& spread, Exchange& exchange, int& leaf_tokens) {
  add_flag(
      app, "--spread", "auto|single|all", spread, parse_spread_policy,
      "Where sequences lie: each on one worker (single), on as many as it has leaves (all), or "
      "as makes rounds short (default auto)");
  add_flag(app, "--exchange", "auto|all-gather|all-to-all", exchange, parse_exchange,
           "How queries and partial results travel: to every worker, or to those that need them "
           "(default auto, by volume)");
  add_leaf_tokens(app, leaf_tokens);
}

void add_query(CLI::App& app, DType& dtype) {
  add_flag(app, "--query", "bf16|f32", dtype, parse_dtype,
           fmt::format("Type of the queries (default {})", dtype_name(dtype)));
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
  add_flag(app, "--shape", "NAME", shape, parse_text,
           "Model shape, one that `tributary info` lists (default " + shape + ")");
}

void add_kv_gib(CLI::App& app, double& kv_gib, const std::string& help) {
  add_number(app, "--kv-gib", kv_gib, 1e-6, 1e5, help);
}

CLI::App* add_verify(CLI::App& app, VerifyOptions& o) {
  auto* sub = app.add_subcommand(
      "verify", "Run golden files through prefill and decode, and compare with their values");
  sub->add_option("FILE", o.files, "Golden files (.safetensors)")->required();
  add_workers(*sub, o.workers);
  add_backend(*sub, o.backend, o.threads);
  add_query(*sub, o.query_dtype);
  add_leaf_tokens(*sub, o.leaf_tokens);
  return sub;
}

CLI::App* add_replay(CLI::App& app, ReplayOptions& o) {
  auto* sub = app.add_subcommand(
      "replay", "Decode a request trace with continuous batching (attention only, generated rows)");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json, fmt::format("{}", o.requests));
  add_workers(*sub, o.workers);
  add_backend(*sub, o.backend, o.threads);
  add_placement(*sub, o.spread, o.exchange, o.leaf_tokens);
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
  add_flag(*sub, "--rows", "bf16|f32", o.row_dtype, parse_dtype,
           fmt::format("Type of the latent rows (default {})", dtype_name(o.row_dtype)));
  add_query(*sub, o.query_dtype);
  add_number(*sub, "--speed", o.speed, 0.0, 1e9, "Arrivals at this many times the trace's pace",
             "0, as capacity allows");
  add_number(*sub, "--canary-rate", o.canary_rate, 0.0, 1.0,
             "Share of outputs that are recomputed in float64 at the end");
  add_number(
      *sub, "--round-timeout-ms", o.round_timeout_ms, 1, std::numeric_limits<int>::max() / 4,
      "Deadline of a round, prompts that it fills included; a worker that misses it ends the "
      "pool");
  return sub;
}

CLI::App* add_simulate(CLI::App& app, SimulateOptions& o) {
  auto* sub = app.add_subcommand(
      "simulate", "Placement and plans of a pool of any size on a trace, without the arithmetic");
  add_trace(*sub, o.trace, o.requests, o.seed, o.json, "0; 2000 of the built-in workload");
  add_number(*sub, "--workers", o.workers, 1, 4096, "Workers of the pool");
  add_number(*sub, "--running", o.running, 1, 1 << 20, "Sequences decoding at the same time");
  add_placement(*sub, o.spread, o.exchange, o.leaf_tokens);
  add_shape(*sub, o.shape);
  add_kv_gib(*sub, o.kv_gib, "Page memory of each worker in GiB, for one layer");
  return sub;
}

/// What CLI11 found wrong, in words for someone who has not read its manual.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    std::vector<std::string> extras;
    for (const std::string& extra : app.remaining(/*recurse=*/true)) extras.push_back(quote(extra));
    return fmt::format("unknown argument {}", fmt::join(extras, ", "));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string name = text.substr(0, text.find(':'));
    return name + (text.ends_with("missing") ? " needs a value" : " is given more than once");
  }
  return text;
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv) {
  ParseResult result;
  Options& o = result.options;
  CLI::App app(kDescription, "tributary");
  app.require_subcommand(1);
  app.set_help_flag("-h,--help", "Show this help");
  app.set_version_flag("--version", std::string(version()), "Show the version");
  app.formatter(std::make_shared<HelpFormat>());
  app.get_formatter()->label("Positionals", "Arguments");
  app.footer(kFooter);
  const std::pair<CLI::App*, Command> commands[] = {
      {add_verify(app, o.verify), Command::kVerify},
      {add_replay(app, o.replay), Command::kReplay},
      {add_simulate(app, o.simulate), Command::kSimulate},
      {app.add_subcommand("info",
                          "Version, instruction sets, backends, communicators and model shapes"),
       Command::kInfo},
  };
  for (const auto& [sub, command] : commands) sub->group("Commands")->footer("");
  const auto refuse = [&result](const std::string& text, const std::string& command) {
    result.exit = true;
    result.exit_status = 2;
    result.text = fmt::format("{} (see tributary {}--help)", text, command);
  };
  constexpr auto kThereAre = "there are verify, replay, simulate and info";
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty()) {
    refuse(fmt::format("no command is given; {}", kThereAre), "");
    return result;
  }
  if (first != "-h" && first != "--help" && first != "--version" &&
      std::none_of(std::begin(commands), std::end(commands),
                   [&](const auto& c) { return c.first->get_name() == first; })) {
    refuse(fmt::format("no command {}; {}", quote(first), kThereAre), "");
    return result;
  }
  try {
    app.parse(argc, argv);
    for (const auto& [sub, command] : commands) {
      if (sub->parsed()) o.command = command;
    }
  } catch (const CLI::CallForHelp&) {
    result.exit = true;
    result.text = app.help();
  } catch (const CLI::CallForVersion& call) {
    result.exit = true;
    result.text = std::string(call.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    std::string command;
    for (const auto& [sub, unused] : commands) {
      if (sub->parsed()) command = sub->get_name() + " ";
    }
    refuse(describe(error, app), command);
  }
  return result;
}

}  // namespace tributary
