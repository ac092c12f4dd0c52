// The measurements of a replay, as text and as JSON.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/round/round.h"
#include "deploy/predict/simulate/quantiles.h"

namespace tributary {

/// Median and 99th percentile, in the unit of the samples.
struct Percentiles {
  double p50 = 0;
  double p99 = 0;
};
/// Returns zeros for no samples. Sorts `samples`.
[[nodiscard]] Percentiles percentiles(std::vector<double>& samples);

/// The workers of a pool.
struct PoolFigures {
  int workers = 0;
  std::string backend;
  std::string threads;  // of each worker: `2, 2`
  std::string communicator;
  std::string costs;  // of which machine: by what sequences were placed
  std::int64_t pages_total = 0;
};

/// The rounds of a pool that ran them for this replay alone.
struct RoundFigures {
  std::array<Percentiles, kPhases> phase_us{};  // per step, the slowest worker
  double balance = 1;                           // mean over steps of max / mean work over workers
  double mean_spread = 0;            // workers that hold a running sequence, mean over steps
  std::uint64_t exchange_bytes = 0;  // queries, rows, states; all workers, as sent
  std::uint64_t planned_exchange_bytes = 0;
  std::uint64_t state_bytes = 0;  // of these, partial states
  std::int64_t peak_pages = 0;    // all workers together
  std::int64_t pages_in_use_at_end = 0;
};

struct ReplayReport {
  std::string service;                 // not empty: a replay on a service
  int clients = 0;                     // of the service
  std::optional<PoolFigures> pool;     // none where the service does not say
  std::optional<RoundFigures> rounds;  // none on a service, which has other clients too
  /// What it ran on and what it ran: reports with other settings are not comparable.
  std::vector<std::pair<std::string, std::string>> settings;
  int ended_by = 0;           // the signal that ended it before its last request; 0: none did
  std::int64_t requests = 0;  // that have got all their tokens
  std::int64_t steps = 0;
  std::int64_t tokens = 0;  // decoded
  std::int64_t prompt_tokens = 0;
  std::int64_t present_tokens = 0;  // of them, that need not be pushed: blocks of other requests
  std::int64_t rows_again = 0;      // of a layer, pushed again since a worker was lost with them
  double seconds = 0;               // from the first admission to the last step, waits included
  double step_seconds = 0;          // spent in steps
  /// From a request's arrival (without --speed: from when it was next) to its first token: the wait
  /// for room, its prompt's rows and its first step.
  Distribution ttft_s;
  Distribution tpot_ms;          // time between tokens: steps, once for each token
  Distribution request_tpot_ms;  // mean time per output token of each request, without the first
  double tpot_bound_ms = 0;
  double goodput_per_s = 0;  // requests a second whose mean time per output token met the bound
  Percentiles step_us;
  Percentiles
      recovery_us;      // of a sequence, from worker_lost until its lost rows have arrived again
  Percentiles fill_us;  // of a prompt, from its first row to the word that all have arrived
  std::int64_t canaries = 0;
  double canary_max_relative_error = 0;
  std::uint64_t digest = 0;

  /// Decoded tokens per second of step time (prompts arrive from the prefill tier in a deployment).
  [[nodiscard]] double tokens_per_second() const noexcept {
    return step_seconds > 0 ? static_cast<double>(tokens) / step_seconds : 0;
  }
};

[[nodiscard]] std::string to_text(const ReplayReport& report);
[[nodiscard]] std::string to_json(const ReplayReport& report);

/// The report of another run.
struct Baseline {
  std::filesystem::path path;
  std::string json;
};
/// For before the run. Throws kNotFound, kIo and kMalformedInput.
[[nodiscard]] Baseline read_baseline(const std::filesystem::path& path);
/// Lines for people: the settings in which a report (as JSON) differs from the baseline, and its
/// figures beside that one's.
[[nodiscard]] std::string compare_reports(const Baseline& baseline, const std::string& report_json);

}  // namespace tributary
