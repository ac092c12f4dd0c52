// Helpers of a replay's tests: a small workload whose sequences spread, and a pool of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/limits.h"
#include "deploy/app/replay/replay.h"

namespace tributary::test {

/// Prompts and outputs on both sides of pages and leaves of 64 and 128 tokens, one token among
/// them; the third prompt alone is longer than the others together.
inline std::vector<TraceRequest> small_trace() {
  const auto request = [](double timestamp_ms, std::int64_t input, std::int64_t output) {
    return TraceRequest{timestamp_ms, input, output, {}};
  };
  return {request(0, 63, 5),  request(0, 1, 4),    request(10, 460, 3),
          request(10, 64, 1), request(20, 129, 6), request(20, 126, 4)};
}

/// Two layers of two heads: an instruction set of one lane takes milliseconds for it.
inline ReplayOptions small_options() {
  ReplayOptions options;
  options.layers = 2;
  options.heads = 2;
  options.leaf_tokens = 64;
  options.kv_gib = 0.02;
  options.threads = 1;
  options.canary_rate = 0;
  return options;
}

/// Memory for `pages` pages on each worker.
inline double kv_gib_of(const ReplayOptions& options, std::int32_t pages) {
  const std::size_t row_bytes = RowLayout{options.row_format, 512, 64}.bytes();
  const auto page_bytes = static_cast<double>(kPageTokens * row_bytes) * options.layers;
  return (pages + 0.5) * page_bytes / 0x1p30;
}

/// Rank 0's report of a pool of `workers` threads.
inline ReplayReport run_threads(const ReplayOptions& options,
                                const std::vector<TraceRequest>& requests, int workers) {
  ReplayReport report;
  const auto network = std::make_shared<LocalNetwork>();
  run_ranks(workers, [&](Communicator& communicator) {
    ReplayReport mine = replay(options, requests, communicator, network, /*terminal=*/nullptr);
    if (communicator.rank() == 0) report = std::move(mine);
  });
  return report;
}

}  // namespace tributary::test
