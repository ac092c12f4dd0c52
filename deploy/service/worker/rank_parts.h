// The parts of one worker of a pool, wired to each other: who hands what to whom.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "comm/wire/access_token.h"
#include "core/interface/clock.h"
#include "core/pool/ingest_table.h"
#include "deploy/service/worker/home/access_check.h"
#include "deploy/service/worker/home/data_plane.h"
#include "deploy/service/worker/home/home.h"
#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/leader_port.h"
#include "deploy/service/worker/home/peers.h"
#include "deploy/service/worker/home/pool_model.h"
#include "deploy/service/worker/home/relays.h"
#include "deploy/service/worker/home/rows_receiver.h"
#include "deploy/service/worker/home/rows_sender.h"
#include "deploy/service/worker/leader/leader_inbox.h"
#include "deploy/service/worker/leader/local_leader.h"
#include "deploy/service/worker/leader/remote_leader.h"

namespace tributary {

/// Without threads and without memory for pages: the transport's thread, the worker's and the
/// ticker's call them. Sends nothing before `peers` is opened, which a DataPlane does.
struct RankParts {
  /// `max_request_bytes`: of layer requests that wait at this home. All others outlive the parts.
  RankParts(int rank, int workers, const wire::Token& pool_key, const PoolModel& model,
            std::size_t max_request_bytes, Clock& clock)
      : ingest(rank, model.served.layers, model.served.leaf_tokens),
        queue(max_request_bytes, [this](const auto& request) { send_reply(peers, request); }),
        relays(peers),
        inbox(workers, clock),
        local(workers, peers, queue, relays, inbox, clock),
        remote(rank, pool_key, peers, queue, relays, clock),
        port(rank == 0 ? static_cast<LeaderPort&>(local) : remote),
        access(pool_key, ingest),
        home(rank, model, access, ingest, peers, queue, relays, port, clock) {}

  [[nodiscard]] RowsReceiver::Links row_links() {
    return {.reply = [this](PeerId peer, const wire::RowsReply& reply) { peers.send(peer, reply); },
            .progress = [this](const wire::Progress& progress) { port.post(progress); }};
  }
  [[nodiscard]] RowsSender::Links pull_links() {
    return {.reply =
                [this](PeerId peer, const wire::PullReply& reply, std::span<const std::byte> rows,
                       std::function<void()> sent) {
                  if (rows.empty()) return peers.send(peer, reply);
                  peers.send(peer, reply, {rows},
                             [sent = std::move(sent)](const Status&) { sent(); });
                },
            .wake = [this] { port.wake(); },
            .want_order = [this] { port.post(wire::OrderWanted{}); }};
  }
  [[nodiscard]] DataPlaneParts with(RowsReceiver& rows, RowsSender& pulls) {
    return {.peers = peers,
            .access = access,
            .rows = rows,
            .pulls = pulls,
            .home = home,
            .queue = queue,
            .relays = relays,
            .leader = port};
  }

  IngestTable ingest;
  Peers peers;
  HomeQueue queue;
  Relays relays;
  LeaderInbox inbox;
  LocalLeader local;
  RemoteLeader remote;
  LeaderPort& port;  // that of the two which this rank uses
  AccessCheck access;
  Home home;
};

}  // namespace tributary
