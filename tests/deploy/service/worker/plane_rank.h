// The parts of one worker, wired as in a pool, over a model without numbers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/base/limits.h"
#include "core/interface/clock.h"
#include "deploy/service/worker/rank_parts.h"
#include "kernels/reference/reference_backend.h"

namespace tributary::test {

struct PlaneModel {
  PlaneModel() {
    model.served.layers = 1;
    model.served.leaf_tokens = kPageTokens;
  }
  PoolModel model;
};

struct PlaneRank : PlaneModel, RankParts {
  PlaneRank(int rank, int workers, Clock& used = steady_clock())
      : RankParts(rank, workers, {}, model, 1000, used), rank(rank), clock(used) {}

  void open(const std::string& listen, const MakeTransport& make_transport,
            std::chrono::milliseconds hello_timeout = std::chrono::hours(1), bool serves = true) {
    plane = std::make_unique<DataPlane>(
        DataPlaneConfig{
            .rank = rank,
            .shape = model.served,
            .transport = {.listen = listen,
                          .secret_of = [](std::uint64_t id) { return wire::access_token({}, id); }},
            .hello_timeout = hello_timeout,
            .serves = serves},
        with(rows, pulls), make_transport, clock);
  }

  int rank;
  Clock& clock;
  std::unique_ptr<Backend> backend = make_reference_backend();
  std::unique_ptr<Cache> cache = backend->make_cache({.layers = 1,
                                                      .pages = 1,
                                                      .kv_lora_rank = 16,
                                                      .qk_rope_head_dim = 8,
                                                      .row_format = RowFormat::kF32});
  SequenceTable table{kPageTokens};
  RowsReceiver rows{rank, ingest, *backend, *cache, row_links(), clock};
  RowsSender pulls{rank, table, ingest, *backend, *cache, pull_links(), clock};
  std::unique_ptr<DataPlane> plane;  // destroyed first
};

}  // namespace tributary::test
