#include "deploy/options/help_format.h"

#include <fmt/format.h>

#include <cstddef>
#include <sstream>

namespace tributary {
namespace {

constexpr std::size_t kTextColumn = 26;
constexpr std::size_t kWidth = 100;

}  // namespace

std::string help_entry(std::string_view name, std::string_view text) {
  std::string lines;
  std::string line = fmt::format("  {}", name);
  if (line.size() + 2 > kTextColumn) {
    lines = line + '\n';
    line.clear();
  }
  line.resize(kTextColumn, ' ');
  std::istringstream words{std::string(text)};
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && line.size() + 1 + word.size() > kWidth) {
      lines += line + '\n';
      line = std::string(kTextColumn, ' ');
      first = true;
    }
    line += (first ? "" : " ") + word;
  }
  return lines + line + '\n';
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  return app->get_description() + "\n\n";
}

std::string HelpFormat::make_usage(const CLI::App* app, std::string name) const {
  if (app->get_parent() == nullptr) return fmt::format("Usage: {} COMMAND [OPTION...]\n", name);
  std::string usage = fmt::format("Usage: {} [OPTION...]", name);
  for (const CLI::Option* option :
       app->get_options([](const CLI::Option* o) { return o->get_positional(); })) {
    usage += " " + make_option_usage(option);
  }
  return usage + '\n';
}

std::string HelpFormat::make_option(const CLI::Option* option, bool positional) const {
  std::string name = make_option_name(option, positional);
  if (!positional && !option->get_option_text().empty()) name += " " + option->get_option_text();
  return help_entry(name, make_option_desc(option));
}

std::string HelpFormat::make_subcommand(const CLI::App* sub) const {
  return help_entry(sub->get_name(), sub->get_description());
}

}  // namespace tributary
