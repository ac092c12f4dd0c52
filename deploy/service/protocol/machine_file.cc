#include "deploy/service/protocol/machine_file.h"

#include <algorithm>
#include <fstream>
#include <system_error>

#include "core/base/error.h"
#include "core/base/strict_json.h"
#include "core/cost/built_in_costs.h"
#include "deploy/service/protocol/json_object.h"

namespace tributary {

using nlohmann::json;

namespace {

constexpr std::size_t kMaxText = 4096;
/// A report of `tributary bench` has some KiB.
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;
// A century: a larger value was not measured.
constexpr double kMaxCost = 3e15;

}  // namespace

nlohmann::ordered_json to_json(const Machine& machine) {
  nlohmann::ordered_json costs;
  for_each_cost(machine.costs, [&](const char* name, double value) { costs[name] = value; });
  return {{"description", machine.description}, {"source", machine.source},
          {"backend", machine.backend},         {"communicator", machine.communicator},
          {"workers", machine.workers},         {"threads", machine.threads},
          {"costs", std::move(costs)}};
}

Machine read_machine(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  }
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    fail(ErrorCode::kMalformedInput, "{}: more than {} bytes, which no report of `bench` has",
         path.string(), kMaxFileBytes);
  }
  const json value = parse_strict_json(text, path.string());
  JsonObject report(value, path.string());
  JsonObject object(report.value("machine"), report.path("machine"));
  Machine machine{.description = object.text("description", kMaxText),
                  .source = object.text("source", kMaxText),
                  .backend = object.text("backend", kMaxText),
                  .communicator = object.text("communicator", kMaxText),
                  .workers = object.integer<int>("workers", 1, 1 << 20),
                  .threads = object.integer<int>("threads", 0, 1 << 20),
                  .costs = {}};
  JsonObject costs(object.value("costs"), object.path("costs"));
  for_each_cost(machine.costs, [&](const char* name, double& cost) {
    cost = costs.number(name);
    if (!(cost >= 0 && cost <= kMaxCost)) {
      fail(ErrorCode::kMalformedInput, "{} is {}, expected 0 or more", costs.path(name), cost);
    }
  });
  if (machine.costs.attend_overlap > 1) {
    fail(ErrorCode::kMalformedInput, "{} is {}, expected at most 1", costs.path("attend_overlap"),
         machine.costs.attend_overlap);
  }
  costs.end();
  object.end();
  return machine;
}

Machine built_in_machine(std::string_view name) {
  const BuiltInCosts& figures = find_built_in_costs(name);
  return {.description = std::string(figures.description),
          .source = "built-in figures, NOT measured",
          .backend = std::string(name),
          .communicator = "any",
          .workers = 1,
          .threads = 0,
          .costs = figures.costs};
}

Machine find_machine(const std::string& name_or_path) {
  const bool known = std::ranges::any_of(
      built_in_costs(), [&](const BuiltInCosts& figures) { return figures.name == name_or_path; });
  // A name that is not a file gets an error that lists the known names.
  std::error_code none;  // a name too long for the file system is no file either
  const bool path = name_or_path.find_first_of("/.") != std::string::npos ||
                    std::filesystem::exists(name_or_path, none);
  return known || !path ? built_in_machine(name_or_path) : read_machine(name_or_path);
}

}  // namespace tributary
