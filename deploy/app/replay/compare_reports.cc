// Two reports of a replay, side by side.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "core/base/strict_json.h"
#include "core/model/config_keys.h"
#include "deploy/app/replay/replay_report.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

/// A figure as its path in the JSON.
constexpr std::array<std::string_view, 13> kFigures{
    "/tokens_per_second",   "/tokens_per_s", "/finished_per_s", "/goodput_per_s", "/ttft_s/p50",
    "/ttft_s/p99",          "/tpot_ms/mean", "/tpot_ms/p50",    "/tpot_ms/p90",   "/tpot_ms/p99",
    "/request_tpot_ms/p50", "/step_us/p50",  "/step_us/p99"};
/// Settings that stand outside the settings proper, since they are figures of the pool, too.
constexpr std::array<std::string_view, 7> kPool{"/workers", "/communicator", "/backend", "/threads",
                                                "/costs",   "/clients",      "/partial"};

std::string text_of(const Json& report, std::string_view path) {
  const Json::json_pointer pointer{std::string(path)};
  if (!report.contains(pointer)) return "nothing";
  const Json& value = report.at(pointer);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

}  // namespace

Baseline read_baseline(const std::filesystem::path& path) {
  Baseline baseline{.path = path, .json = read_config_text(path)};
  const Json report = parse_strict_json(baseline.json, path.string());
  if (!report.is_object() || !report.contains("settings") || !report.at("settings").is_object()) {
    fail(ErrorCode::kMalformedInput, "{}: not a report of replay --json", path.string());
  }
  return baseline;
}

std::string compare_reports(const Baseline& baseline, const std::string& report_json) {
  const Json before = Json::parse(baseline.json);
  const Json now = Json::parse(report_json);
  std::string text = fmt::format("\nbeside {}\n", baseline.path.string());
  const auto differ = [&](std::string_view path) {
    const std::string a = text_of(before, path);
    const std::string b = text_of(now, path);
    if (a != b)
      text += fmt::format("  other {:<18} {}, now {}\n", path.substr(path.rfind('/') + 1), a, b);
  };
  Json names = before.at("settings");
  names.update(now.at("settings"));
  for (const auto& [name, unused] : names.items()) differ("/settings/" + name);
  for (const std::string_view path : kPool) differ(path);
  if (text_of(before, "/digest") != text_of(now, "/digest")) text += "  other digest\n";
  text += fmt::format("  {:<24} {:>12} {:>12} {:>8}\n", "", "before", "now", "ratio");
  for (const std::string_view path : kFigures) {
    const Json::json_pointer pointer{std::string(path)};
    if (!before.contains(pointer) || !before.at(pointer).is_number()) continue;
    const double a = before.at(pointer);
    const double b = now.at(pointer);
    text += fmt::format("  {:<24} {:>12.4g} {:>12.4g} {:>8}\n", path.substr(1), a, b,
                        a > 0 ? fmt::format("{:.3f}", b / a) : "-");
  }
  return text;
}

}  // namespace tributary
