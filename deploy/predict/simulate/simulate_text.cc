// A simulation's report as text and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "deploy/predict/simulate/simulate.h"

namespace tributary {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMB = 1e6;
constexpr double kGB = 1e9;

std::string rate_text(const SimulatedPoint& point) {
  return point.rate > 0 ? fmt::format("{:.2f}", point.rate) : "-";
}

Json to_json(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}, {"max", d.max}};
}

Json to_json(const RequestCounts& c) {
  return {{"arrived", c.arrived},       {"finished", c.finished}, {"running", c.running},
          {"in_prefill", c.in_prefill}, {"waiting", c.waiting},   {"refused", c.refused},
          {"too_large", c.too_large}};
}

Json to_json(const SimulatedPoint& point, const SimulateReport& report) {
  const TierResult& r = point.result;
  Json phases = Json::object();
  for (std::size_t p = 0; p < kPhases; ++p) {
    phases[std::string(phase_name(static_cast<Phase>(p)))] = r.phase_us[p];
  }
  return {{"spread", spread_policy_name(point.spread)},
          {"rate", point.rate},
          {"meets_bounds", meets_bounds(r, report.tpot_ms, report.wait_ms)},
          {"requests", to_json(r.requests)},
          {"arrived_per_s", r.arrived_per_s},
          {"finished_per_s", r.finished_per_s},
          {"goodput_per_s", r.goodput_per_s},
          {"tokens_per_s", r.tokens_per_s},
          {"ttft_s", to_json(r.ttft_s)},
          {"prefill_wait_s", to_json(r.prefill_wait_s)},
          {"room_wait_s", to_json(r.room_wait_s)},
          {"tpot_ms", to_json(r.tpot_ms)},
          {"request_tpot_ms", to_json(r.request_tpot_ms)},
          {"running", r.running},
          {"peak_running", r.peak_running},
          {"occupancy", r.occupancy},
          {"balance", r.balance},
          {"phase_us", phases},
          {"other_us", r.other_us},
          {"node_bytes_per_token", r.bytes_per_token.node},
          {"network_bytes_per_token", r.bytes_per_token.network},
          {"all_gather_share", r.all_gather_share},
          {"steps", r.steps},
          {"placements", r.placements},
          {"prompt_tokens", r.prompt_tokens},
          {"present_tokens", r.present_tokens},
          {"moves", {{"count", r.moves}, {"bytes", r.moved_bytes}, {"copy_s", r.copy_s}}},
          {"checks",
           {{"steps", r.checks},
            {"worst_difference", r.worst_check},
            {"bytes_agree", r.bytes_agree},
            {"tokens", r.checked_tokens},
            {"plan_bytes", r.plan_bytes},
            {"least_bytes", r.least_bytes},
            {"mean_spread", r.mean_spread},
            {"mean_roots", r.mean_roots},
            {"busiest_home_roots", r.busiest_home_roots}}}};
}

double decisions_per_second(const SimulateReport& report) {
  std::uint64_t placements = 0;
  for (const SimulatedPoint& point : report.points) placements += point.result.placements;
  return report.effort.admit_seconds > 0
             ? static_cast<double>(placements) / report.effort.admit_seconds
             : 0;
}

void add_points(const SimulateReport& report, std::string& text) {
  text += fmt::format(
      "\n{:<7}{:>9} |{:>8}{:>8} |{:>8}{:>8}{:>8} |{:>8}{:>9} |{:>9}{:>7}{:>8} |"
      "{:>9}{:>9} | {}\n",
      "spread", "rate/s", "TTFT s", "p99", "TPOT ms", "p50", "p99", "wait p99", "good/s", "running",
      "pages", "balance", "node MB", "net MB", "met");
  for (const SimulatedPoint& point : report.points) {
    const TierResult& r = point.result;
    text += fmt::format(
        "{:<7}{:>9} |{:>8.3f}{:>8.3f} |{:>8.2f}{:>8.2f}{:>8.2f} |{:>8.3f}{:>9.2f} |"
        "{:>9.0f}{:>6.1f}%{:>8.3f} |{:>9.3f}{:>9.3f} | {}\n",
        spread_policy_name(point.spread), rate_text(point), r.ttft_s.mean, r.ttft_s.p99,
        r.tpot_ms.mean, r.tpot_ms.p50, r.tpot_ms.p99, r.room_wait_s.p99, r.goodput_per_s, r.running,
        100 * r.occupancy, r.balance, r.bytes_per_token.node / kMB, r.bytes_per_token.network / kMB,
        meets_bounds(r, report.tpot_ms, report.wait_ms) ? "yes" : "no");
  }
}

void add_phases(const SimulateReport& report, std::string& text) {
  text += "\nmean ms of a step by phase, and what the checked steps had\n";
  for (const SimulatedPoint& point : report.points) {
    const TierResult& r = point.result;
    text += fmt::format("{:<7}{:>9} |", spread_policy_name(point.spread), rate_text(point));
    for (std::size_t p = 0; p < kPhases; ++p) {
      if (r.phase_us[p] <= 0) continue;
      text += fmt::format(" {} {:.2f}", phase_name(static_cast<Phase>(p)), r.phase_us[p] / 1e3);
    }
    text += fmt::format(" other {:.2f}", r.other_us / 1e3);
    if (r.checks > 0) {
      text += fmt::format(
          " | {:.2f} workers, {:.2f} roots a sequence; {} checks, worst {:.1g}, "
          "bytes {}",
          r.mean_spread, r.mean_roots, r.checks, r.worst_check,
          r.bytes_agree ? "agree" : "DISAGREE");
      if (r.least_bytes > 0) {
        const auto tokens = static_cast<double>(r.checked_tokens);
        text += fmt::format(": {:.3f} MB a token, {:.3f} at least", r.plan_bytes / tokens / kMB,
                            r.least_bytes / tokens / kMB);
      }
    }
    if (r.present_tokens > 0) {
      text += fmt::format(
          " | {:.1f}% of the prompts' rows were there",
          100 * static_cast<double>(r.present_tokens) / static_cast<double>(r.prompt_tokens));
    }
    if (r.moves > 0) {
      text += fmt::format(" | {} moves, {:.1f} GB, {:.2f} s of steps", r.moves, r.moved_bytes / kGB,
                          r.copy_s);
    }
    text += '\n';
  }
}

}  // namespace

std::string to_text(const SimulateReport& report) {
  std::string text;
  const auto line = [&text](std::string_view name, const std::string& value) {
    text += fmt::format("{:<10} {}\n", name, value);
  };
  line("machine", report.machine);
  line("tier", fmt::format("{} pool{} of {} workers, {} a node, {} pages each; {}", report.pools,
                           report.pools == 1 ? "" : "s", report.workers,

                           report.workers_per_node, report.pages_per_worker, report.shape));
  line("trace", fmt::format("{} requests, {:.2f} a second at its own pace", report.trace_requests,
                            report.trace_rate));
  line("bounds", fmt::format("p99 time per output token {} ms, p99 wait for room {} ms, no refusal",
                             report.tpot_ms, report.wait_ms));
  add_points(report, text);
  add_phases(report, text);
  for (const SimulatedPoint& point : report.points) {
    const RequestCounts& c = point.result.requests;
    if (c.refused + c.too_large == 0) continue;
    text += fmt::format("{:<7}{:>9} | {} requests refused, {} too large for an empty pool, of {}\n",
                        spread_policy_name(point.spread), rate_text(point), c.refused, c.too_large,
                        c.arrived);
  }
  if (!report.searches.empty()) text += "\nhighest rate that meets the bounds\n";
  for (const SearchResult& search : report.searches) {
    text += fmt::format("{:<7}{:>9.2f} | above it, {}\n", spread_policy_name(search.spread),
                        search.rate.holds, search.binds);
  }
  text += fmt::format(
      "\nsimulated in {:.2f} s, of which admission {:.2f} s: {:.0f} placement "
      "decisions a second; {:.2f} GiB\n",
      report.effort.seconds, report.effort.admit_seconds, decisions_per_second(report),
      report.peak_memory_bytes / 0x1p30);
  return text;
}

std::string to_json(const SimulateReport& report) {
  Json points = Json::array();
  for (const SimulatedPoint& point : report.points) points.push_back(to_json(point, report));
  Json searches = Json::array();
  for (const SearchResult& search : report.searches) {
    searches.push_back({{"spread", spread_policy_name(search.spread)},
                        {"highest_rate", search.rate.holds},
                        {"fails_at", search.rate.fails},
                        {"binds", search.binds}});
  }
  const Json json{{"machine", report.machine},
                  {"shape", report.shape},
                  {"topk", report.topk},
                  {"pools", report.pools},
                  {"workers", report.workers},
                  {"workers_per_node", report.workers_per_node},
                  {"pages_per_worker", report.pages_per_worker},
                  {"tpot_ms", report.tpot_ms},
                  {"wait_ms", report.wait_ms},
                  {"trace_requests", report.trace_requests},
                  {"trace_rate", report.trace_rate},
                  {"points", points},
                  {"searches", searches},
                  {"effort",
                   {{"seconds", report.effort.seconds},
                    {"admit_seconds", report.effort.admit_seconds},
                    {"decisions_per_second", decisions_per_second(report)},
                    {"peak_memory_bytes", report.peak_memory_bytes}}}};
  return json.dump(2);
}

}  // namespace tributary
