// The layout of the help: a flag and its value's name on one line, its meaning beside it, wrapped
// to the width of a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

namespace tributary {

class HelpFormat : public CLI::Formatter {
 public:
  [[nodiscard]] std::string make_description(const CLI::App* app) const override;
  [[nodiscard]] std::string make_usage(const CLI::App* app, std::string name) const override;
  [[nodiscard]] std::string make_option(const CLI::Option* option, bool positional) const override;
  [[nodiscard]] std::string make_subcommand(const CLI::App* sub) const override;
};

/// The group that a help shows first.
inline constexpr auto kFirstGroup = "Needed first";

/// `name`, then from column 26 on the words of `text` in lines of at most 100 columns; a long name
/// has a line of its own.
[[nodiscard]] std::string help_entry(std::string_view name, std::string_view text);

}  // namespace tributary
