// `tributary config`: checks configuration files and prints one with every flag.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "core/base/error.h"
#include "deploy/app/config/config_file.h"
#include "deploy/app/flags/flags.h"
#include "deploy/app/flags/shared_flags.h"
#include "deploy/app/flags/subcommands.h"

namespace tributary {

CLI::App* add_config_command(CLI::App& app, ConfigOptions& o) {
  auto* sub = app.add_subcommand(
      "config", "Configuration files (TOML): check one, or print one with every flag");
  add_flag(*sub, "--check", "FILE", o.check, parse_text,
           "Say everything that is wrong with this file, with its line");
  add_switch(*sub, "--print-defaults", o.print_defaults,
             "Print a file with every flag of every command: its meaning, range and default");
  sub->require_option(1);
  return sub;
}

ConfigOutcome run_config_command(CLI::App& app, const ConfigOptions& o) {
  if (o.print_defaults) return {.text = default_config(app)};
  try {
    const ConfigFile file(*o.check);
    std::vector<std::string> wrong = file.problems(app);
    std::vector<std::string> conflicts = file.conflicts(app);
    std::ranges::move(conflicts, std::back_inserter(wrong));
    if (!wrong.empty()) return {.text = fmt::format("{}", fmt::join(wrong, "\n")), .ok = false};
    return {.text = fmt::format("{}: good, {} flags of {} commands\n", o.check->string(),
                                file.keys(), file.tables())};
  } catch (const Error& error) {
    return {.text = error.what(), .ok = false};
  }
}

}  // namespace tributary
