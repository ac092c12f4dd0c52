// A plan as text and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "deploy/predict/plan/plan_command.h"

namespace tributary {
namespace {

constexpr double kGiB = 0x1p30;
double token_ms(const PlanCandidate& candidate, const PlanOptions& options) {
  return candidate.step.step_us / 1e3 / options.tokens;
}

std::string name(const PlanCandidate& candidate) {
  return fmt::format("{}, {}", spread_policy_name(candidate.spread),
                     exchange_name(candidate.exchange));
}

/// Milliseconds in nine columns, one of them a space: a long step loses decimals, not the space.
std::string ms_column(double us) {
  const double ms = us / 1e3;
  return fmt::format("{:>9.{}f}", ms, ms < 9999 ? 3 : ms < 999'999 ? 1 : 0);
}

}  // namespace

std::string to_text(const PlanReport& report, const PlanOptions& options) {
  std::string text;
  const auto line = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("{:<10} {}\n", what, value);
  };
  const PlanCandidate& best = report.candidates.front();
  line("machine", fmt::format("{} ({})", report.machine.description, report.machine.source));
  line("pool", fmt::format("{} workers: {} on each of {} node{}", report.workers,
                           options.workers_per_node, options.nodes, options.nodes == 1 ? "" : "s"));
  line("work",
       fmt::format("{}, {} layers; {} sequences of {} tokens, {} new a step{}", report.shape,
                   report.layers, options.batch, options.context, options.tokens,
                   report.topk > 0 ? fmt::format(", {} rows each", report.topk) : ""));
  line("memory",
       fmt::format("{:.2f} GiB on the fullest worker: {:.2f} weights, {:.2f} latent rows{}",
                   (report.weight_bytes + best.cache_bytes) / kGiB, report.weight_bytes / kGiB,
                   best.cache_bytes / kGiB,
                   report.memory_bytes <= 0 ? ""
                   : fits(best, report)
                       ? fmt::format("; it has {:.0f}", report.memory_bytes / kGiB)
                       : fmt::format("; it has {:.0f}: DOES NOT FIT", report.memory_bytes / kGiB)));
  if (fits(best, report)) {
    line("best", fmt::format("spread {}: {:.3f} ms a step, {:.0f} tokens/s", name(best),
                             best.step.step_us / 1e3,
                             1e6 * options.batch * options.tokens / best.step.step_us));
    line("bytes", fmt::format("{:.2f} MB exchanged a layer; {:.2f} at least with these owners",
                              best.exchanged_bytes / 1e6, best.least_bytes / 1e6));
  } else {
    line("best",
         report.weight_bytes >= report.memory_bytes ? "none: a worker does not hold the weights"
         : report.workers_needed > report.workers
             ? fmt::format("none fits: {} workers at least ({} nodes) would hold the rows",
                           report.workers_needed, report.workers_needed / options.workers_per_node)
             : "none of these fits, though there is room for the rows");
  }
  if (report.whole) {
    const WholeBatch& whole = *report.whole;
    line("whole", fmt::format("all alike: each on {} worker{}, {:.3f} ms a step; one by one "
                              "{:.3f}, after {} moves ({:.1f} GB) {:.3f}",
                              whole.known_spread, whole.known_spread == 1 ? "" : "s",
                              whole.known_us / 1e3, whole.admitted_us / 1e3, whole.moves,
                              whole.moved_bytes / 1e9, whole.moved_us / 1e3));
  }
  if (options.target_ms > 0) {
    const double ms = token_ms(best, options);
    line("target",
         fmt::format("{} ms a token: {} ({:.3f} ms)", options.target_ms,
                     ms <= options.target_ms && fits(best, report) ? "met" : "MISSED", ms));
  }
  text += fmt::format("\n{:<20}{:>9}{:>8}", "ms of a step", "total", "GiB");
  for (const std::string_view phase : kPhaseColumns) text += fmt::format("{:>9}", phase);
  text += fmt::format("{:>9}{:>8}\n", "other", "spread");
  for (const PlanCandidate& candidate : report.candidates) {
    text += fmt::format("{:<20}{}{:>8.2f}", name(candidate), ms_column(candidate.step.step_us),
                        (report.weight_bytes + candidate.cache_bytes) / kGiB);
    for (const double us : candidate.step.phase_us) text += ms_column(us);
    text +=
        fmt::format("{}{:>8.1f}\n", ms_column(candidate.step.other_us), candidate.spread_workers);
  }
  return text;
}

std::string to_json(const PlanReport& report, const PlanOptions& options) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const PlanCandidate& candidate : report.candidates) {
    nlohmann::ordered_json phases;
    for (std::size_t p = 0; p < kPhases; ++p) {
      phases[std::string(phase_name(static_cast<Phase>(p)))] = candidate.step.phase_us[p];
    }
    candidates.push_back({{"spread", spread_policy_name(candidate.spread)},
                          {"exchange", exchange_name(candidate.exchange)},
                          {"step_us", candidate.step.step_us},
                          {"phase_us", std::move(phases)},
                          {"other_us", candidate.step.other_us},
                          {"workers_of_a_sequence", candidate.spread_workers},
                          {"exchanged_bytes_a_layer", candidate.exchanged_bytes},
                          {"least_bytes_a_layer", candidate.least_bytes},
                          {"cache_bytes", candidate.cache_bytes},
                          {"fits", fits(candidate, report)}});
  }
  const PlanCandidate& best = report.candidates.front();
  nlohmann::ordered_json object{{"machine", to_json(report.machine)},
                                {"shape", report.shape},
                                {"topk", report.topk},
                                {"workers", report.workers},
                                {"layers", report.layers},
                                {"batch", options.batch},
                                {"context", options.context},
                                {"tokens", options.tokens},
                                {"weight_bytes", report.weight_bytes},
                                {"fits", fits(best, report)},
                                {"workers_needed", report.workers_needed},
                                {"token_ms", token_ms(best, options)}};
  if (options.target_ms > 0) {
    object["target_met"] = token_ms(best, options) <= options.target_ms && fits(best, report);
  }
  if (report.whole) {
    object["whole_batch"] = {{"known_us", report.whole->known_us},
                             {"known_spread", report.whole->known_spread},
                             {"admitted_us", report.whole->admitted_us},
                             {"moved_us", report.whole->moved_us},
                             {"moves", report.whole->moves},
                             {"moved_bytes", report.whole->moved_bytes}};
  }
  object["candidates"] = std::move(candidates);
  return object.dump(2);
}

}  // namespace tributary
