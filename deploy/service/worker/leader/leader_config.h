// The configuration of a pool's leader.
#pragma once

#include <chrono>

#include "comm/wire/access_token.h"
#include "core/base/deadline.h"
#include "core/sequencer/sequencer.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct LeaderConfig {
  SequencerConfig sequencer;
  wire::Token pool_key{};
  LeaderOptions options;
  double canary_bound = 2e-2;
  /// After a collective failed: how long a worker that made it fail may be silent.
  Duration failure_timeout = std::chrono::seconds(10);

  [[nodiscard]] const AttentionShape& attention() const noexcept {
    return sequencer.placement.model.attention;
  }
};

}  // namespace tributary
