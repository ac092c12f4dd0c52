// The constants of the cost model as a file, which `tributary bench --json` writes and pools and
// `tributary plan --machine` read.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/cost/machine_costs.h"

namespace tributary {

struct Machine {
  std::string description;
  std::string source;  // `measured`, or whose figures these are
  std::string backend;
  std::string communicator;
  int workers = 1;  // that were at work
  int threads = 0;  // of each worker; 0: does not apply
  MachineCosts costs;
};

/// For .cc files of deploy/ only, since it shows the JSON library.
[[nodiscard]] nlohmann::ordered_json to_json(const Machine& machine);
/// Throws kIo; kMalformedInput, naming the file and the field, for content that to_json() does not
/// write. Fields beside `machine` are the report's.
[[nodiscard]] Machine read_machine(const std::filesystem::path& path);
/// Finds built-in figures by name. Throws kNotFound with the list.
[[nodiscard]] Machine built_in_machine(std::string_view name);
/// `name_or_path` is the name of built-in figures or a file; it is a file if it has a slash or a
/// dot, or exists. Throws as the two do.
[[nodiscard]] Machine find_machine(const std::string& name_or_path);

}  // namespace tributary
