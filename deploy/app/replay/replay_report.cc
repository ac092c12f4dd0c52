#include "deploy/app/replay/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>

namespace tributary {
namespace {

constexpr std::string_view kUnknown = "unknown";

template <typename Line>
void round_lines(const ReplayReport& report, const Line& line) {
  if (!report.rounds) {
    for (const char* name : {"balance", "spread", "exchanged", "pages"}) {
      line(name, std::string(kUnknown));
    }
    return;
  }
  const RoundFigures& r = *report.rounds;
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  line("balance", fmt::format("{:.3f} (max / mean work over workers, mean over steps)", r.balance));
  line("spread", fmt::format("{:.2f} workers a sequence", r.mean_spread));
  line("exchanged",
       fmt::format("{:.2f} MiB ({:.2f} MiB planned), {:.2f} MiB of it partial states",
                   mib(r.exchange_bytes), mib(r.planned_exchange_bytes), mib(r.state_bytes)));
  line("pages", fmt::format("{} of {} used at the peak, {} at the end", r.peak_pages,
                            report.pool ? report.pool->pages_total : 0, r.pages_in_use_at_end));
}

template <typename Line>
void phase_lines(const ReplayReport& r, const Line& line) {
  const auto text = [](const Percentiles& us) {
    return fmt::format("p50 {:.0f} us, p99 {:.0f} us", us.p50, us.p99);
  };
  line("fill", text(r.fill_us));
  line("step", text(r.step_us));
  for (std::size_t p = 0; p < kPhases; ++p) {
    line(fmt::format("  {}", phase_name(static_cast<Phase>(p))),
         r.rounds ? text(r.rounds->phase_us[p]) : std::string(kUnknown));
  }
}

double per_second(const ReplayReport& r, std::int64_t count) {
  return r.seconds > 0 ? static_cast<double>(count) / r.seconds : 0;
}

nlohmann::ordered_json to_json(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}, {"max", d.max}};
}

}  // namespace

Percentiles percentiles(std::vector<double>& samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  const auto at = [&](double share) {
    const auto last = static_cast<double>(samples.size() - 1);
    return samples[static_cast<std::size_t>(std::lround(share * last))];
  };
  return {at(0.50), at(0.99)};
}

std::string to_text(const ReplayReport& r) {
  std::string text;
  auto out = std::back_inserter(text);
  if (r.ended_by != 0) {
    fmt::format_to(out, "PARTIAL: ended by {} before its last request\n",
                   r.ended_by == SIGINT ? "SIGINT" : "SIGTERM");
  }
  const auto line = [&](std::string_view name, const std::string& value) {
    fmt::format_to(out, "{:<18} {}\n", name, value);
  };
  for (const auto& [name, value] : r.settings) line(name, value);
  if (!r.service.empty()) {
    line("service",
         fmt::format("{}, {} client{}", r.service, r.clients, r.clients == 1 ? "" : "s"));
  }
  line("workers", r.pool ? fmt::format("{} ({}), backend {}, threads {}", r.pool->workers,
                                       r.pool->communicator, r.pool->backend, r.pool->threads)
                         : std::string(kUnknown));
  line("decoded",
       fmt::format("{} tokens of {} requests in {} steps, {} prompt tokens pushed, {} were there",
                   r.tokens, r.requests, r.steps, r.prompt_tokens - r.present_tokens,
                   r.present_tokens));
  if (r.rows_again > 0) {
    line(
        "pushed again",
        fmt::format("{} rows of a layer, lost with a worker; there after p50 {:.0f} us, p99 {:.0f}",
                    r.rows_again, r.recovery_us.p50, r.recovery_us.p99));
  }
  line("tokens/s", fmt::format("{:.1f} ({:.2f} s in steps, {:.2f} s in all)", r.tokens_per_second(),
                               r.step_seconds, r.seconds));
  line("requests/s", fmt::format("{:.3f}, {:.3f} with at most {:g} ms a token (goodput)",
                                 per_second(r, r.requests), r.goodput_per_s, r.tpot_bound_ms));
  const auto times = [](const Distribution& d, double scale) {
    return fmt::format("mean {:.2f} ms, p50 {:.2f}, p90 {:.2f}, p99 {:.2f}", d.mean * scale,
                       d.p50 * scale, d.p90 * scale, d.p99 * scale);
  };
  line("first token", times(r.ttft_s, 1e3));
  line("between tokens", times(r.tpot_ms, 1));
  line("token of a request", times(r.request_tpot_ms, 1));
  phase_lines(r, line);
  line("placed by", r.pool ? r.pool->costs : std::string(kUnknown));
  round_lines(r, line);
  line("canary", fmt::format("{} outputs recomputed in float64, largest relative error {:.3g}",
                             r.canaries, r.canary_max_relative_error));
  line("digest", fmt::format("{:016x}", r.digest));
  return text;
}

std::string to_json(const ReplayReport& r) {
  const auto both = [](const Percentiles& p) {
    return nlohmann::ordered_json{{"p50", p.p50}, {"p99", p.p99}};
  };
  const auto of_rounds = [&](const auto& value) {
    return r.rounds ? nlohmann::ordered_json(std::invoke(value, *r.rounds)) : nullptr;
  };
  const auto of_pool = [&](const auto& member) {
    return r.pool ? nlohmann::ordered_json((*r.pool).*member) : nullptr;
  };
  nlohmann::ordered_json phases{{"fill", both(r.fill_us)}};
  for (std::size_t p = 0; p < kPhases; ++p) {
    phases[std::string(phase_name(static_cast<Phase>(p)))] =
        of_rounds([&](const RoundFigures& f) { return both(f.phase_us[p]); });
  }
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [name, value] : r.settings) settings[name] = value;
  nlohmann::ordered_json json{
      {"partial", r.ended_by != 0},
      {"settings", settings},
      {"digest", fmt::format("{:016x}", r.digest)},
      {"tokens_per_second", r.tokens_per_second()},
      {"tokens_per_s", per_second(r, r.tokens)},
      {"finished_per_s", per_second(r, r.requests)},
      {"goodput_per_s", r.goodput_per_s},
      {"tpot_bound_ms", r.tpot_bound_ms},
      {"ttft_s", to_json(r.ttft_s)},
      {"tpot_ms", to_json(r.tpot_ms)},
      {"request_tpot_ms", to_json(r.request_tpot_ms)},
      {"step_us", both(r.step_us)},
      {"phase_us", phases},
      {"balance", of_rounds(&RoundFigures::balance)},
      {"exchange_bytes", of_rounds(&RoundFigures::exchange_bytes)},
      {"planned_exchange_bytes", of_rounds(&RoundFigures::planned_exchange_bytes)},
      {"partial_state_bytes", of_rounds(&RoundFigures::state_bytes)},
      {"canaries", r.canaries},
      {"canary_max_relative_error", r.canary_max_relative_error},
      {"pages_in_use_at_end", of_rounds(&RoundFigures::pages_in_use_at_end)},
      {"peak_pages", of_rounds(&RoundFigures::peak_pages)},
      {"pages_total", of_pool(&PoolFigures::pages_total)},
      {"workers", of_pool(&PoolFigures::workers)},
      {"communicator", of_pool(&PoolFigures::communicator)},
      {"costs", of_pool(&PoolFigures::costs)},
      {"backend", of_pool(&PoolFigures::backend)},
      {"threads", of_pool(&PoolFigures::threads)},
      {"requests", r.requests},
      {"steps", r.steps},
      {"tokens", r.tokens},
      {"prompt_tokens", r.prompt_tokens},
      {"present_tokens", r.present_tokens},
      {"rows_pushed_again", r.rows_again},
      {"recovery_us", both(r.recovery_us)},
      {"mean_spread", of_rounds(&RoundFigures::mean_spread)},
      {"seconds", r.seconds},
      {"step_seconds", r.step_seconds},
  };
  if (!r.service.empty()) {
    json["service"] = r.service;
    json["clients"] = r.clients;
  }
  return json.dump(2);
}

}  // namespace tributary
