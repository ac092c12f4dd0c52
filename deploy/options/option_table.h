// Tables of options as data: a line for each option of a struct, whatever the type of its field.
// The command line, the help, configuration files, child processes and tests go by them.
#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/option.h"
#include "deploy/options/option_values.h"

namespace tributary {

struct OptionLine {
  std::string name;   // `--lease-ms`; of a positional argument `TRACE`
  std::string value;  // what the help calls it: `N`, `X`, `FILE`, `auto|ucx|tcp`; a switch has none
  std::string help;   // with range and default
  std::string low, high;     // the bounds of a number
  std::string default_text;  // the field's text before anything was read; may be empty
  std::string environment;   // the variable that is read where the flag is not given
  std::string group;         // under which heading of the help; may be empty
  std::vector<std::string> needs, excludes;  // names of other options
  bool required = false;
  bool repeats = false;  // any number of values, each read by its own call
  /// Throws Error, which does not name the option. A switch takes `true` and `false`.
  std::function<void(const std::string& text)> read;
  /// The text that read() would read; empty if the field has no such value.
  std::function<std::string()> text;

  [[nodiscard]] bool positional() const { return !name.starts_with("--"); }
  [[nodiscard]] bool is_switch() const { return value.empty() && !positional(); }
  [[nodiscard]] bool is_number() const { return !low.empty(); }
  /// The key in a configuration file: `lease-ms`.
  [[nodiscard]] std::string key() const { return name.substr(2); }
};

/// The visitor of for_each_option() that makes lines. They refer to the fields.
class OptionVisitor {
 public:
  explicit OptionVisitor(std::vector<OptionLine>& lines) : lines_(&lines) {}
  /// Another one, whose lines need or exclude these flags too.
  [[nodiscard]] OptionVisitor with(const OptionNotes& notes) const;
  /// Another one, whose lines stand under a heading of the help.
  [[nodiscard]] OptionVisitor in_group(std::string_view group) const;

  /// A number.
  template <typename T>
  requires std::is_arithmetic_v<T>
  void operator()(T& field, std::string_view name, OptionRange<std::type_identity_t<T>> range,
                  std::string_view help, const OptionNotes& notes = {}) {
    constexpr double kNobodyAsksForMore = 1e8;  // there to keep arithmetic from overflowing
    OptionLine& line = add(field, name, std::is_floating_point_v<T> ? "X" : "N", notes);
    line.read = [&field, range](const std::string& text) {
      field = parse_number<T>(text, range.low, range.high);
    };
    // A default may be no value that the flag takes: the help has words for it.
    line.text = [&field, range] {
      return field >= range.low && field <= range.high ? value_text(field) : "";
    };
    line.default_text = line.text();
    line.low = fmt::format("{}", range.low);
    line.high = fmt::format("{}", range.high);
    const bool open = static_cast<double>(range.high) >= kNobodyAsksForMore;
    line.help = fmt::format("{} ({}{}; default {})", help, line.low,
                            open ? " or more" : " to " + line.high, shown(line, notes));
  }
  /// A template, so that `{1, 8}` is no PowersOfTwo.
  template <std::same_as<PowersOfTwo> Range>
  void operator()(int& field, std::string_view name, Range range, std::string_view help,
                  const OptionNotes& notes = {}) {
    add_powers(field, name, range, help, notes);
  }
  /// A switch.
  void operator()(bool& field, std::string_view name, std::string_view help,
                  const OptionNotes& notes = {});
  /// Anything else that has a text, see option_values.h.
  template <typename T>
  requires(!std::is_arithmetic_v<T>) void operator()(T& field, std::string_view name,
                                                     std::string_view value, std::string_view help,
                                                     const OptionNotes& notes = {}) {
    OptionLine& line = add(field, name, value, notes);
    line.read = [&field](const std::string& text) { read_value(text, field); };
    line.help = with_default(help, line, notes);
  }
  /// A positional argument that takes all the rest.
  void operator()(std::vector<std::filesystem::path>& field, std::string_view name,
                  std::string_view value, std::string_view help, const OptionNotes& notes = {});

 private:
  void add_powers(int& field, std::string_view name, PowersOfTwo range, std::string_view help,
                  const OptionNotes& notes);
  OptionLine& add_line(std::string_view name, std::string_view value, const OptionNotes& notes);
  template <typename T>
  OptionLine& add(T& field, std::string_view name, std::string_view value,
                  const OptionNotes& notes) {
    OptionLine& line = add_line(name, value, notes);
    line.text = [&field] { return value_text(field); };
    line.default_text = line.text();
    return line;
  }
  static std::string shown(const OptionLine& line, const OptionNotes& notes);
  static std::string with_default(std::string_view help, const OptionLine& line,
                                  const OptionNotes& notes);

  std::vector<OptionLine>* lines_;
  std::vector<std::string> needs_, excludes_;
  std::string group_;
};

/// The lines of `options`, which outlives them and stays where it is.
template <class Options>
[[nodiscard]] std::vector<OptionLine> option_lines(Options& options) {
  std::vector<OptionLine> lines;
  OptionVisitor visitor(lines);
  options.for_each_option(visitor);
  return lines;
}

struct CommandTable {
  std::string name, description;
  std::vector<OptionLine> options = {};
  std::vector<std::string> first = {};  // the options that everybody needs first
  bool configurable = true;             // a configuration file may have a table of it

  /// The flag of a key in a configuration file; null where the command has none.
  [[nodiscard]] const OptionLine* find(std::string_view key) const;
};

/// The flags that give `options`, each with its value, for processes that this program starts.
/// Left out: switches that are off, and what has no value.
[[nodiscard]] std::vector<std::string> words_of(const std::vector<OptionLine>& lines);

}  // namespace tributary
