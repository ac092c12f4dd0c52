// The configuration of a pool's leader.
#pragma once

#include "comm/wire/access_token.h"
#include "core/sequencer/sequencer.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct LeaderConfig {
  SequencerConfig sequencer;
  wire::Token pool_key{};
  LeaderOptions options;
  double canary_bound = 2e-2;

  [[nodiscard]] const AttentionShape& attention() const noexcept {
    return sequencer.placement.model.attention;
  }
};

}  // namespace tributary
