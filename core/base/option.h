// The lines of tables of options.
//
// A struct of options lists them in one function, which parsing, the help, configuration files,
// child processes and tests all visit:
//
//   struct TopOptions {
//     std::string url = "http://127.0.0.1:7300";
//     int interval_ms = 1000;
//     bool once = false;
//
//     template <class Visitor>
//     void for_each_option(Visitor& v) {
//       v(url, "URL", "", "The control plane");
//       v(interval_ms, "--interval-ms", {1000, kMaxOptionMs}, "Time between two pictures");
//       v(once, "--once", "Print one picture after one interval");
//     }
//   };
//
// A line is the field, whose initialiser is the default; the flag's name, which ends with the unit,
// and without its dashes is the key in a configuration file (without dashes: a positional
// argument); a number's range, or what the help calls another value; the help; and OptionNotes.
#pragma once

#include <limits>
#include <string_view>

namespace tributary {

/// The numbers from low to high.
template <typename T>
struct OptionRange {
  T low{}, high{};
};

/// The powers of two from low to high, both powers of two.
struct PowersOfTwo {
  int low = 1, high = 1;
};

/// Bound of times in milliseconds: code may add up a few of them.
inline constexpr int kMaxOptionMs = std::numeric_limits<int>::max() / 4;

struct OptionNotes {
  std::string_view shown_default = {};  // what the help says instead of the default
  std::string_view needs = {};          // another flag that must be given too
  std::string_view excludes = {};       // another flag that must not
  std::string_view environment = {};    // the variable that is read where the flag is not given
  bool required = false;
};

}  // namespace tributary
