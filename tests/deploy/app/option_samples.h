// Values that an option takes and refuses, by its line in the program's tables; command lines.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "deploy/app/options.h"

namespace tributary::test {

/// The program's arguments, without its own name.
inline ParseResult parse(std::vector<std::string> words) {
  words.insert(words.begin(), "tributary");
  std::vector<const char*> argv;
  argv.reserve(words.size());
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data());
}

struct Flag {
  std::string command;
  OptionLine line;  // without its functions: of which options, text_in() says
};

/// Every flag of every command that a configuration file may set; no positional arguments.
inline std::vector<Flag> flags() {
  Options options;
  std::vector<Flag> all;
  for (const CommandTable& table : command_tables(options)) {
    for (const OptionLine& line : table.options) {
      if (!table.configurable || line.positional()) continue;
      all.push_back({table.name, line});
      all.back().line.read = nullptr;
      all.back().line.text = nullptr;
    }
  }
  return all;
}

/// The text of a flag's field in `options`.
inline std::string text_in(Options& options, const Flag& flag) {
  const std::vector<CommandTable> tables = command_tables(options);
  return std::ranges::find(tables, flag.command, &CommandTable::name)
      ->find(flag.line.key())
      ->text();
}

/// The shortest call of a command that is valid with this flag.
inline std::vector<std::string> call_with(const Flag& flag) {
  std::vector<std::string> words = {flag.command};
  if (flag.command == "verify" || flag.command == "prefill") words.emplace_back("a.safetensors");
  std::vector<std::string> others = flag.line.needs;
  if (flag.command == "prefill") others.emplace_back("--service");
  if (flag.line.name == "--client-ca") others.emplace_back("--tls-key");
  for (const std::string& other : others) {
    if (other != flag.line.name) words.insert(words.end(), {other, "a"});
  }
  return words;
}

inline std::vector<std::string> good_values(const OptionLine& line) {
  if (line.name == "--steps") return {"1x2", "1x4096,4096x16777216"};
  if (line.name == "--rate") return {"3.5", "10,20.5"};
  if (line.value == "LIST") return {"single", "auto,all"};
  if (line.is_switch()) return {"true"};
  if (line.is_number()) return {line.low, line.high};
  std::vector<std::string> choices;  // auto|ucx|tcp
  for (const char c : "|" + line.value) {
    if (c == '|') choices.emplace_back();
    if (c != '|') choices.back() += c;
  }
  return std::islower(choices[0][0]) != 0 ? choices : std::vector<std::string>{"a"};
}

inline std::vector<std::string> bad_values(const OptionLine& line) {
  if (line.is_switch()) return {"", "1", "on"};
  std::vector<std::string> bad = {""};
  if (line.name == "--steps") bad.insert(bad.end(), {"1", "1x1", "0x2", "4097x2", "1x2,", "1x2;3"});
  if (line.name == "--rate") bad.insert(bad.end(), {"0", "-1", "nan", "1e7", "1,", "1 2"});
  if (line.name == "--gpu") return bad;  // a name that is looked up when the command runs
  if (line.value == "LIST" || good_values(line)[0] != "a") bad.insert(bad.end(), {"x", "Auto"});
  if (line.name == "--leaf-tokens") bad.insert(bad.end(), {"32", "65", "96", "2097152"});
  if (!line.is_number()) return bad;
  const bool real = line.value == "X";
  for (const char* text : {"3 ", "0x10", "1,5", "-2", "nan", "-nan", "inf", "1e999"}) {
    bad.emplace_back(text);
  }
  if (!real) bad.insert(bad.end(), {"1.5", "1e3", "99999999999999999999"});
  const double low = std::stod(line.low);
  const double high = std::stod(line.high);
  if (high < 1e18) bad.push_back(fmt::format("{}", real ? high * 1.001 : high + 1));
  bad.push_back(fmt::format("{}", real ? low - 1e-7 : low - 1));
  return bad;
}

}  // namespace tributary::test
