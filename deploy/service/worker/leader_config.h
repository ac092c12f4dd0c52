// The configuration of a pool's leader.
#pragma once

#include <chrono>
#include <cstddef>

#include "comm/wire/access_token.h"
#include "core/rebalance/mover.h"
#include "core/sequencer/sequencer.h"

namespace tributary {

struct LeaderConfig {
  SequencerConfig sequencer;
  int layers = 1;
  int heads = 1;
  wire::Token pool_key{};
  int max_batch = 256;
  std::chrono::microseconds batch_wait{50};
  std::chrono::milliseconds lease{30'000};
  std::chrono::milliseconds worker_timeout{3'000};
  std::chrono::milliseconds drain_timeout{10'000};
  std::chrono::milliseconds canary_interval{1'000};  // 0: never
  double canary_bound = 2e-2;
  double move_bytes_per_s = kDefaultMoveBytesPerS;  // of leaves between workers; 0: they stay
  std::size_t row_bytes = 1;                        // of a latent row, as it is moved
};

}  // namespace tributary
