#include "deploy/app/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/app/config/completion.h"
#include "deploy/app/config/config_file.h"
#include "deploy/options/help_format.h"

namespace tributary {
namespace {

constexpr auto kDescription =
    "Tributary: decode attention for models with Multi-head Latent Attention, over a latent KV\n"
    "cache that is spread along the sequence. The same bits on any number of workers.";
constexpr auto kFooter =
    "`tributary help COMMAND` lists a command's options. Started by mpirun, worker, verify and\n"
    "replay run on its ranks as one pool.\n"
    "Exit status: 0 done, 1 failed (verify: a value is out of bounds), 2 bad flags or files.";

/// The least number of letters to insert, remove, replace or exchange with a neighbour.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row.back();
}

/// `; did you mean --workers?`, or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names) {
  constexpr std::size_t kLongestName = 40;
  const auto distance = [&](const std::string& name) {
    return word.size() > kLongestName ? kLongestName : edits(word, name);
  };
  const auto nearest = std::ranges::min_element(names, {}, distance);
  const bool alike = nearest != names.end() && distance(*nearest) <= (word.size() < 5 ? 1 : 2);
  return alike ? fmt::format("; did you mean {}?", *nearest) : "";
}

/// CLI11's error in words for somebody who has not read its manual.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    // What follows an unknown flag may be its value.
    const std::string extra = app.remaining(/*recurse=*/true).front();
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands()) {
      for (const CLI::Option* option : command->get_options()) names.push_back(option->get_name());
    }
    return fmt::format("unknown argument {}{}", quote(extra), did_you_mean(extra, names));
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

template <class CommandOptions>
CommandTable table(const char* name, const char* description, CommandOptions& options,
                   const std::vector<std::string>& first) {
  return {
      .name = name, .description = description, .options = option_lines(options), .first = first};
}

void add_option(CLI::App& command, const OptionLine& line, const std::string& group) {
  const auto read = [&line](const std::string& text) {
    try {
      line.read(text);
    } catch (const Error& error) {
      throw CLI::ValidationError(fmt::format("{}: {}", line.name, error.what()));
    }
  };
  CLI::Option* option = nullptr;
  if (line.is_switch()) {
    option = command.add_flag_function(
        line.name, [read](std::int64_t) { read("true"); }, line.help);
    option->multi_option_policy(CLI::MultiOptionPolicy::Throw)->disable_flag_override();
  } else if (line.repeats) {
    option = command.add_option_function<std::vector<std::string>>(
        line.name, [read](const auto& texts) { std::ranges::for_each(texts, read); }, line.help);
  } else {
    option = command.add_option_function<std::string>(line.name, read, line.help);
    option->option_text(line.value);
  }
  if (!line.environment.empty()) option->envname(line.environment);
  option->required(line.required);
  if (!group.empty() && !line.positional()) option->group(group);
}

/// The command of a table, whose lines outlive it.
CLI::App& add_command(CLI::App& program, const CommandTable& table) {
  CLI::App& command = *program.add_subcommand(table.name, table.description);
  // The help shows groups in the order of their first options.
  if (!table.first.empty()) command.get_help_ptr()->group(kFirstGroup);
  const auto is_first = [&](const OptionLine& line) {
    return std::ranges::find(table.first, line.name) != table.first.end();
  };
  for (const OptionLine& line : table.options) {
    if (is_first(line)) add_option(command, line, kFirstGroup);
  }
  for (const OptionLine& line : table.options) {
    if (!is_first(line)) add_option(command, line, line.group);
  }
  for (const OptionLine& line : table.options) {
    CLI::Option* option = command.get_option(line.name);
    for (const std::string& other : line.needs) option->needs(command.get_option(other));
    for (const std::string& other : line.excludes) option->excludes(command.get_option(other));
  }
  if (table.configurable) {
    // The file is read before the command line is parsed, see with_config().
    command
        .add_option_function<std::string>(
            "--config", [](const std::string&) {},
            "Take flags from the table [" + table.name +
                "] of this TOML file; flags of the command line win (see tributary config --help)")
        ->option_text("FILE");
  }
  command.group("Commands")->footer("");
  return command;
}

/// The program's commands and flags, with the options that they fill in.
struct Program {
  Options options;
  std::vector<CommandTable> tables = command_tables(options);
  CLI::App app{kDescription, "tributary"};

  Program() {
    app.require_subcommand(1);
    app.set_help_flag("-h,--help", "Show this help");
    app.set_version_flag("-V,--version", fmt::format("tributary {}", build_text()),
                         "Show the version, its commit and the kind of build");
    app.formatter(std::make_shared<HelpFormat>());
    app.get_formatter()->label("Positionals", "Arguments");
    app.footer(kFooter);
    for (const CommandTable& table : tables) add_command(app, table);
    app.get_subcommand("config")->require_option(1);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  [[nodiscard]] const CommandTable* find(const std::string& name) const {
    const auto found = std::ranges::find(tables, name, &CommandTable::name);
    return found == tables.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const CommandTable& table : tables) names.push_back(table.name);
    return names;
  }
  /// `there are up, control, ... and info`.
  [[nodiscard]] std::string there_are() const {
    std::vector<std::string> names = this->names();
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
  Options scratch;  // its fields check the values
  const std::vector<CommandTable> tables = command_tables(scratch);
  const auto command = std::ranges::find(tables, words.front(), &CommandTable::name);
  if (!path || asks_for_help(given) || !command->configurable) return words;
  const ConfigFile file(*path);
  const std::vector<std::string> problems = file.problems(tables);
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

/// Runs `tributary config`.
ParseResult run_config(const ConfigOptions& options) {
  Options scratch;
  const std::vector<CommandTable> tables = command_tables(scratch);
  if (options.print_defaults) return {.exit = true, .text = default_config(tables)};
  try {
    if (!options.print_completion.empty()) {
      return {.exit = true, .text = completion_script(tables, options.print_completion)};
    }
    const ConfigFile file(*options.check);
    std::vector<std::string> wrong = file.problems(tables);
    std::ranges::move(file.conflicts(tables), std::back_inserter(wrong));
    if (wrong.empty()) {
      return {.exit = true,
              .text = fmt::format("{}: good, {} flags of {} commands\n", options.check->string(),
                                  file.keys(), file.tables())};
    }
    return {.exit = true,
            .exit_status = 2,
            .code = ErrorCode::kMalformedInput,
            .text = fmt::format("{}", fmt::join(wrong, "\n"))};
  } catch (const Error& error) {
    return {.exit = true, .exit_status = 2, .code = error.code(), .text = error.what()};
  }
}

}  // namespace

std::vector<CommandTable> command_tables(Options& o) {
  std::vector<CommandTable> tables = {
      table("up", "A whole service on this machine: control plane and one pool", o.up,
            {"--workers", "--shape", "--model", "--kv-gib", "--listen"}),
      table("control", "The control plane: admission, HTTP interface, status page, metrics",
            o.control, {"--listen", "--token-file", "--tls-certificate", "--tls-key"}),
      table("worker", "Serve a pool: start it with mpirun, each rank is a worker of one pool",
            o.worker, {"--control", "--shape", "--model", "--kv-gib", "--listen"}),
      table("prefill",
            "An example prefill tier: latent rows of a golden file's prompts to a service",
            o.prefill, {"--service"}),
      table("verify", "Run golden files through prefill and decode, and compare with their values",
            o.verify, {"--service", "--workers"}),
      table("replay",
            "Decode a request trace with continuous batching (attention only, generated rows)",
            o.replay, {"--service", "--workers", "--requests", "--length-scale", "--json"}),
      table("simulate", "A tier of any size under a trace's arrivals, in predicted time",
            o.simulate, {"--workers", "--rate", "--search", "--costs", "--requests"}),
      table("top",
            "A running service at a glance: workers, pages, load, where the time of a step goes",
            o.top, {}),
      table("bench", "Measure these machines: kernels, exchange and steps, beside what they can do",
            o.bench, {"--workers", "--shape", "--json"}),
      table("plan", "What a pool would take for a step: memory, time by phase, the best spread",
            o.plan, {"--gpu", "--shape", "--batch", "--context", "--table"}),
      table("config", "Configuration files (TOML): check one, or print one with every flag",
            o.config, {})};
  tables.back().configurable = false;
  tables.push_back(table(
      "info", "Version, instruction sets, backends, communicators and model shapes", o.info, {}));
  tables.back().configurable = false;
  return tables;
}

ParseResult parse_options(int argc, const char* const* argv) {
  ParseResult result;
  Program program;
  const auto refuse = [&result](const std::string& text, const std::string& command,
                                ErrorCode code = ErrorCode::kInvalidArgument) {
    result.exit = true;
    result.code = code;
    result.exit_status = 2;
    result.text = fmt::format("{} (see tributary {}--help)", text, command);
  };
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words.front() == "help") {  // `help up` is `up --help`
    words.erase(words.begin());
    words.resize(std::min<std::size_t>(words.size(), 1));
    words.emplace_back("--help");
  }
  const std::string first = words.empty() ? "" : words.front();
  const CommandTable* named = program.find(first);
  if (first.empty()) {
    refuse(fmt::format("no command is given; {}", program.there_are()), "");
    return result;
  }
  if (!std::ranges::count(
          std::initializer_list<std::string_view>{"-h", "--help", "-V", "--version"}, first) &&
      named == nullptr) {
    const std::string hint = did_you_mean(first, program.names());
    refuse(fmt::format("no command {}{}", quote(first),
                       hint.empty() ? "; " + program.there_are() : hint),
           "");
    return result;
  }
  try {
    if (named != nullptr) words = with_config(std::move(words));
    std::ranges::reverse(words);  // as CLI11 wants them
    program.app.parse(words);
    program.options.command = static_cast<Command>(named - program.tables.data());
  } catch (const CLI::CallForHelp&) {
    result.exit = true;
    result.text = program.app.help();
  } catch (const CLI::CallForVersion& call) {
    result.exit = true;
    result.text = std::string(call.what()) + "\n";
  } catch (const CLI::ParseError& error) {
    refuse(describe(error, program.app), named != nullptr ? first + " " : "");
  } catch (const Error& error) {
    refuse(error.what(), "config ", error.code());
  }
  if (!result.exit && program.options.command == Command::kConfig) {
    result = run_config(program.options.config);
  }
  result.options = std::move(program.options);
  return result;
}

}  // namespace tributary
