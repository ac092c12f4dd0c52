// Every flag of the program: default, bounds, good and bad values.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "deploy/app/flags/options.h"

namespace tributary::test {

struct Flag {
  std::string command;
  std::string name;
  std::function<std::string(const Options&)> get;
  std::string shown_default;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

using AddFlag = std::function<void(
    const std::string& command, const std::string& name,
    std::function<std::string(const Options&)> get, const std::string& shown_default,
    const std::vector<std::string>& good, const std::vector<std::string>& bad)>;

/// The flags of verify, replay and simulate.
void add_pool_command_flags(const AddFlag& add);
void add_simulate_flags(const AddFlag& add);
/// The flags of worker, control, up and prefill.
void add_service_command_flags(const AddFlag& add);
/// All of them; the switches, which take no value, are not among them.
[[nodiscard]] std::vector<Flag> flags();

/// The program's arguments, without its own name.
[[nodiscard]] ParseResult parse(std::vector<std::string> words);

[[nodiscard]] std::string show(const std::optional<std::filesystem::path>& path);

}  // namespace tributary::test
