#include "deploy/app/flags/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/app/config/config_file.h"
#include "deploy/app/flags/help_format.h"
#include "deploy/app/flags/subcommands.h"
#include "deploy/app/info/info.h"

namespace tributary {
namespace {

constexpr auto kDescription =
    "Tributary: decode attention for models with Multi-head Latent Attention, over a latent KV\n"
    "cache that is spread along the sequence. The same bits on any number of workers.";
constexpr auto kFooter =
    "`tributary COMMAND --help` lists a command's options. Started by mpirun, worker, verify and\n"
    "replay run on its ranks as one pool.\n"
    "Exit status: 0 done, 1 failed (verify: a value is out of bounds), 2 bad flags or files.";
/// CLI11's error in words for somebody who has not read its manual.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    std::vector<std::string> extras;
    for (const std::string& extra : app.remaining(/*recurse=*/true)) extras.push_back(quote(extra));
    return fmt::format("unknown argument {}", fmt::join(extras, ", "));
  }
  if (text.ends_with("disallowed flag override")) {
    return fmt::format("--{} takes no value", text.substr(0, text.find(' ')));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string name = text.substr(0, text.find(':'));
    return name + (text.ends_with("missing") ? " needs a value" : " is given more than once");
  }
  return text;
}

/// The program's commands and flags, with the options that they fill in.
struct Program {
  Options options;
  ConfigOptions config;
  CLI::App app{kDescription, "tributary"};
  std::vector<std::pair<CLI::App*, Command>> commands;

  Program() {
    Options& o = options;
    app.require_subcommand(1);
    app.set_help_flag("-h,--help", "Show this help");
    app.set_version_flag("--version", std::string(version()), "Show the version");
    app.formatter(std::make_shared<HelpFormat>());
    app.get_formatter()->label("Positionals", "Arguments");
    app.footer(kFooter);
    commands = {
        {add_up(app, o.up), Command::kUp},
        {add_control(app, o.control), Command::kControl},
        {add_worker(app, o.worker), Command::kWorker},
        {add_prefill(app, o.prefill), Command::kPrefill},
        {add_verify(app, o.verify), Command::kVerify},
        {add_replay(app, o.replay), Command::kReplay},
        {add_simulate(app, o.simulate), Command::kSimulate},
        {add_top(app, o.top), Command::kTop},
        {add_bench(app, o.bench), Command::kBench},
        {add_plan(app, o.plan), Command::kPlan},
    };
    for (const auto& [sub, command] : commands) add_config(*sub);
    commands.emplace_back(add_config_command(app, config), Command::kNone);
    commands.emplace_back(
        app.add_subcommand("info",
                           "Version, instruction sets, backends, communicators and model shapes"),
        Command::kInfo);
    for (const auto& [sub, command] : commands) {
      sub->group("Commands")->footer("");
      sub->get_help_ptr()->configurable(false);
    }
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] CLI::App* find(const std::string& name) const {
    for (const auto& [sub, command] : commands) {
      if (sub->get_name() == name) return sub;
    }
    return nullptr;
  }
  /// `there are up, control, ... and info`.
  [[nodiscard]] std::string there_are() const {
    std::vector<std::string> names;
    for (const auto& [sub, command] : commands) names.push_back(sub->get_name());
    const std::string last = names.back();
    names.pop_back();
    return fmt::format("there are {} and {}", fmt::join(names, ", "), last);
  }
};

bool asks_for_help(std::span<const std::string> words) {
  return std::ranges::any_of(
      words, [](const std::string& word) { return word == "-h" || word == "--help"; });
}

/// The words of a command with those of its configuration file, where it names one. Throws what
/// read_toml() throws, and kMalformedInput with the first problem.
std::vector<std::string> with_config(std::vector<std::string> words) {
  const std::span<const std::string> given(words.begin() + 1, words.end());
  const auto path = config_argument(given);
  Program scratch;  // its flags check the values
  const CLI::App* command = scratch.find(words.front());
  if (!path || asks_for_help(given) || command->get_option_no_throw("--config") == nullptr) {
    return words;
  }
  const ConfigFile file(*path);
  const std::vector<std::string> problems = file.problems(scratch.app);
  if (!problems.empty()) {
    fail(ErrorCode::kMalformedInput, "{}{}", problems.front(),
         problems.size() == 1 ? ""
                              : fmt::format(" (and {} more: tributary config --check {})",
                                            problems.size() - 1, *path));
  }
  const std::vector<std::string> more = file.words(words.front(), given);
  words.insert(words.begin() + 1, more.begin(), more.end());
  return words;
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv) {
  ParseResult result;
  Program program;
  const auto refuse = [&result](const std::string& text, const std::string& command) {
    result.exit = true;
    result.exit_status = 2;
    result.text = fmt::format("{} (see tributary {}--help)", text, command);
  };
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const std::string first = words.empty() ? "" : words.front();
  const CLI::App* named = program.find(first);
  if (first.empty()) {
    refuse(fmt::format("no command is given; {}", program.there_are()), "");
    return result;
  }
  if (first != "-h" && first != "--help" && first != "--version" && named == nullptr) {
    refuse(fmt::format("no command {}; {}", quote(first), program.there_are()), "");
    return result;
  }
  try {
    if (named != nullptr) words = with_config(std::move(words));
    std::ranges::reverse(words);  // as CLI11 wants them
    program.app.parse(words);
    for (const auto& [sub, command] : program.commands) {
      if (sub->parsed()) program.options.command = command;
    }
  } catch (const CLI::CallForHelp&) {
    result.exit = true;
    result.text = program.app.help();
  } catch (const CLI::CallForVersion& call) {
    result.exit = true;
    result.text = std::string(call.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    refuse(describe(error, program.app), named != nullptr ? first + " " : "");
  } catch (const Error& error) {
    refuse(error.what(), "config ");
  }
  if (!result.exit && program.find("config")->parsed()) {
    Program scratch;
    const ConfigOutcome outcome = run_config_command(scratch.app, program.config);
    result = {.options = {}, .exit = true, .exit_status = outcome.ok ? 0 : 2, .text = outcome.text};
  }
  result.options = std::move(program.options);
  return result;
}

}  // namespace tributary
