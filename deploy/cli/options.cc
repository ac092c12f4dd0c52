#include "deploy/cli/options.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "deploy/cli/help_format.h"
#include "deploy/cli/subcommands.h"
#include "deploy/info/info.h"

namespace tributary {
namespace {

constexpr auto kDescription =
    "Tributary: decode attention for models with Multi-head Latent Attention, over a latent KV\n"
    "cache that is spread along the sequence. The same bits on any number of workers.";
constexpr auto kFooter =
    "`tributary COMMAND --help` lists a command's options. Started by mpirun, worker, verify and\n"
    "replay run on its ranks as one pool.\n"
    "Exit status: 0 done, 1 failed (verify: a value is out of bounds), 2 bad flags or files.";
/// What CLI11 found wrong, in words for someone who has not read its manual.
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
      {add_up(app, o.up), Command::kUp},
      {add_control(app, o.control), Command::kControl},
      {add_worker(app, o.worker), Command::kWorker},
      {add_prefill(app, o.prefill), Command::kPrefill},
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
  constexpr auto kThereAre =
      "there are up, control, worker, prefill, verify, replay, simulate and info";
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
