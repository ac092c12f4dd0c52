// A pool's counts of itself, as plain values: filled by its leader, sent with every heartbeat,
// exported by the control plane. All totals are since the pool's start.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "core/metrics/histogram.h"
#include "core/round/phases.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// The kinds of work that a pool's constants price.
inline constexpr std::array<std::string_view, 3> kCostKinds{"attend", "exchange", "combine"};
/// The time that rounds took over the time that the pool's constants predict, by kind of work.
using CostFactors = std::array<double, kCostKinds.size()>;

struct PoolMetrics {
  std::uint64_t rounds = 0;
  std::uint64_t failed_rounds = 0;
  std::uint64_t tokens = 0;           // committed new tokens
  std::uint64_t steps = 0;            // of one sequence each, committed with at least one token
  std::uint64_t aborted_steps = 0;    // ended with nothing accepted
  std::uint64_t refused_items = 0;    // of rounds that clients asked for
  std::uint64_t exchanged_bytes = 0;  // queries, new rows and partial states between workers
  std::uint64_t moves = 0;            // of leaves between workers, completed
  std::uint64_t cancelled_moves = 0;
  std::uint64_t moved_bytes = 0;  // rows that were copied for moves, of cancelled ones too
  std::uint64_t ingested_rows = 0;
  std::uint64_t ingested_bytes = 0;
  std::uint64_t pulled_rows = 0;
  std::uint64_t pulled_bytes = 0;
  std::array<std::uint64_t, wire::kRefusals> refused_rows{};  // messages, by wire::Refusal
  std::array<std::uint64_t, wire::kLimits> limited{};         // times, by wire::Limit
  std::uint64_t prefix_cache_queries = 0;  // prompt tokens of admissions that named blocks
  std::uint64_t prefix_cache_hits = 0;     // of them, that were there
  std::uint64_t admitted = 0;
  std::uint64_t freed = 0;
  std::uint64_t leases_expired = 0;
  std::uint64_t canaries = 0;
  std::uint64_t canary_failures = 0;  // above the bound of the pool's types
  double canary_error = 0;            // of the last one, relative, against float64
  /// Of the rounds of the last half minute: the busiest worker's rows over the mean; 0: no rounds.
  double balance = 0;
  CostFactors cost_factors{1, 1, 1};
  std::int64_t filling = 0, ready = 0, stepping = 0;  // sequences, now
  std::uint64_t connections = 0;                      // clients on all workers, now
  std::uint64_t accept_pauses = 0;                    // of all workers

  DurationHistogram round_seconds;                       // order to end, on the leader
  std::array<DurationHistogram, kPhases> phase_seconds;  // slowest worker, see Phase
  DurationHistogram step_seconds;             // first item of a step to its commit, of one sequence
  DurationHistogram commit_interval_seconds;  // a commit of a sequence to its next
  DurationHistogram first_commit_seconds;     // admission of a sequence to its first commit
  DurationHistogram wait_seconds;             // item's arrival at the leader to its round
  DurationHistogram ingest_seconds;           // one row message: header to checksum
  BatchHistogram batch;                       // items of a round
};

}  // namespace tributary
