#include "deploy/app/replay/replay_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tributary {
namespace {

/// Writes the lines that only a pool in this program can report.
template <typename Line>
void pool_lines(const ReplayReport& r, const Line& line) {
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 0x1p20; };
  for (std::size_t p = 0; p < kPhases; ++p) {
    line(fmt::format("  {}", phase_name(static_cast<Phase>(p))),
         fmt::format("p50 {:.0f} us, p99 {:.0f} us", r.phase_us[p].p50, r.phase_us[p].p99));
  }
  line("placed by", r.costs);
  line("balance", fmt::format("{:.3f} (max / mean work over workers, mean over steps)", r.balance));
  line("spread", fmt::format("{:.2f} workers a sequence", r.mean_spread));
  line("exchanged",
       fmt::format("{:.2f} MiB ({:.2f} MiB planned), {:.2f} MiB of it partial states",
                   mib(r.exchange_bytes), mib(r.planned_exchange_bytes), mib(r.state_bytes)));
  line("pages", fmt::format("{} of {} used at the peak, {} at the end", r.peak_pages, r.pages_total,
                            r.pages_in_use_at_end));
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
  const auto line = [&](std::string_view name, const std::string& value) {
    fmt::format_to(out, "{:<18} {}\n", name, value);
  };
  const bool pool = r.service.empty();
  if (pool) {
    line("workers", fmt::format("{} ({}), backend {}", r.workers, r.communicator, r.backend));
  } else {
    line("service",
         fmt::format("{}, {} client{}", r.service, r.clients, r.clients == 1 ? "" : "s"));
  }
  line("decoded", fmt::format("{} tokens of {} requests in {} steps, {} prompt tokens {}", r.tokens,
                              r.requests, r.steps, r.prompt_tokens, pool ? "filled" : "pushed"));
  line("tokens/s", fmt::format("{:.1f} ({:.2f} s in steps, {:.2f} s in all)", r.tokens_per_second(),
                               r.step_seconds, r.seconds));
  line("step", fmt::format("p50 {:.0f} us, p99 {:.0f} us", r.step_us.p50, r.step_us.p99));
  if (pool) pool_lines(r, line);
  line("canary", fmt::format("{} outputs recomputed in float64, largest relative error {:.3g}",
                             r.canaries, r.canary_max_relative_error));
  line("digest", fmt::format("{:016x}", r.digest));
  return text;
}

std::string to_json(const ReplayReport& r) {
  const auto both = [](const Percentiles& p) {
    return nlohmann::ordered_json{{"p50", p.p50}, {"p99", p.p99}};
  };
  nlohmann::ordered_json phases;
  for (std::size_t p = 0; p < kPhases; ++p) {
    phases[std::string(phase_name(static_cast<Phase>(p)))] = both(r.phase_us[p]);
  }
  nlohmann::ordered_json json{
      {"digest", fmt::format("{:016x}", r.digest)},
      {"tokens_per_second", r.tokens_per_second()},
      {"step_us", both(r.step_us)},
      {"phase_us", phases},
      {"balance", r.balance},
      {"exchange_bytes", r.exchange_bytes},
      {"planned_exchange_bytes", r.planned_exchange_bytes},
      {"partial_state_bytes", r.state_bytes},
      {"canaries", r.canaries},
      {"canary_max_relative_error", r.canary_max_relative_error},
      {"pages_in_use_at_end", r.pages_in_use_at_end},
      {"peak_pages", r.peak_pages},
      {"pages_total", r.pages_total},
      {"workers", r.workers},
      {"communicator", r.communicator},
      {"costs", r.costs},
      {"backend", r.backend},
      {"requests", r.requests},
      {"steps", r.steps},
      {"tokens", r.tokens},
      {"prompt_tokens", r.prompt_tokens},
      {"mean_spread", r.mean_spread},
      {"seconds", r.seconds},
      {"step_seconds", r.step_seconds},
  };
  if (!r.service.empty()) {
    for (const char* key :
         {"phase_us", "balance", "exchange_bytes", "planned_exchange_bytes", "partial_state_bytes",
          "pages_in_use_at_end", "peak_pages", "pages_total", "workers", "communicator", "costs",
          "backend", "mean_spread"}) {
      json.erase(key);
    }
    json["service"] = r.service;
    json["clients"] = r.clients;
  }
  return json.dump(2);
}

}  // namespace tributary
