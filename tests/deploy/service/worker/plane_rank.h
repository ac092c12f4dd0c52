// The parts of one worker's data plane, assembled as in a pool, over a model without numbers.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "core/interface/clock.h"
#include "deploy/service/worker/home/data_plane.h"
#include "deploy/service/worker/leader/leader_inbox.h"
#include "deploy/service/worker/leader/local_leader.h"
#include "deploy/service/worker/leader/remote_leader.h"
#include "kernels/reference/reference_backend.h"

namespace tributary::test {

struct PlaneRank {
  PlaneRank(int rank, int workers, Clock& used = steady_clock())
      : rank(rank),
        clock(used),
        inbox(workers, clock),
        local(workers, peers, queue, relays, inbox, clock),
        remote(rank, {}, peers, queue, relays, clock) {
    model.served.layers = 1;
  }

  void open(const std::string& listen, const MakeTransport& make_transport,
            std::chrono::milliseconds hello_timeout = std::chrono::hours(1)) {
    plane = std::make_unique<DataPlane>(
        DataPlaneConfig{
            .rank = rank,
            .shape = model.served,
            .transport = {.listen = listen,
                          .secret_of = [](std::uint64_t id) { return wire::access_token({}, id); }},
            .hello_timeout = hello_timeout},
        DataPlaneParts{.peers = peers,
                       .access = access,
                       .rows = rows,
                       .home = home,
                       .queue = queue,
                       .leader = port},
        make_transport, clock);
  }

  int rank;
  Clock& clock;
  std::unique_ptr<Backend> backend = make_reference_backend();
  std::unique_ptr<Cache> cache = backend->make_cache({.layers = 1,
                                                      .pages = 1,
                                                      .kv_lora_rank = 16,
                                                      .qk_rope_head_dim = 8,
                                                      .row_format = RowFormat::kF32});
  PoolModel model;
  IngestTable table{rank, 1, kPageTokens};
  Peers peers;
  HomeQueue queue{1000, [this](const auto& request) { send_reply(peers, request); }};
  Relays relays{peers};
  LeaderInbox inbox;
  LocalLeader local;
  RemoteLeader remote;
  LeaderPort& port = rank == 0 ? static_cast<LeaderPort&>(local) : remote;
  AccessCheck access{{}, table};
  RowsReceiver rows{
      rank,
      table,
      *backend,
      *cache,
      {.reply = [this](PeerId peer, const wire::RowsReply& reply) { peers.send(peer, reply); },
       .progress = [this](const wire::Progress& progress) { port.post(progress); }},
      clock};
  Home home{rank, model, access, table, peers, queue, relays, port, clock};
  std::unique_ptr<DataPlane> plane;  // destroyed first
};

}  // namespace tributary::test
