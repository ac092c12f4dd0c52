#include "deploy/service/worker/leader/local_leader.h"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <utility>

#include "comm/transport/message_condition.h"
#include "core/base/error.h"
#include "deploy/service/protocol/dispatch_message.h"

namespace tributary {
namespace {

constexpr const char* kBehind = "the pool's leader is behind";

/// An order that leaves.
struct Leaving {
  std::vector<std::byte> order;
  std::mutex mutex;
  MessageCondition changed;
  std::size_t left = 0;  // workers, under the mutex
};

}  // namespace

LocalLeader::LocalLeader(int workers, Peers& peers, HomeQueue& queue, Relays& relays,
                         LeaderInbox& inbox, Clock& clock)
    : peers_(peers),
      queue_(queue),
      relays_(relays),
      inbox_(inbox),
      clock_(clock),
      slots_(static_cast<std::size_t>(workers)) {}

void LocalLeader::take(int rank, wire::Items items) {
  wire::ItemsRefused refused{
      .ticket = items.ticket, .items = {}, .outcome = {ErrorCode::kPoolFull, kBehind}};
  for (std::uint32_t i = 0; i < items.items.size(); ++i) refused.items.push_back(i);
  if (!inbox_.post_items(rank, std::move(items))) refuse(rank, refused);
}

void LocalLeader::take(int rank, wire::ControlRelay relay) {
  wire::ControlRelayReply full{.ticket = relay.ticket, .items = {}, .message = kBehind};
  full.items.resize(relay.items.size(), {.code = ErrorCode::kPoolFull});
  if (!inbox_.post_relay(rank, std::move(relay))) answer(rank, full);
}

void LocalLeader::take(int /*rank*/, const wire::Progress& progress) {
  inbox_.post_progress(progress);
}

void LocalLeader::take(int /*rank*/, const wire::Beat& beat) {
  inbox_.post_beat(beat);
}

void LocalLeader::take(int /*rank*/, const wire::OrderWanted& /*wanted*/) {
  inbox_.post_order_wanted();
}

void LocalLeader::take(int rank, const wire::Leaving& /*leaving*/) {
  inbox_.post_leaving(rank);
}

void LocalLeader::take(int rank, const wire::WaitedFor& waited) {
  for (const int other : waited.ranks) {
    if (other >= 0 && std::cmp_less(other, slots_.size())) continue;
    fail(ErrorCode::kMalformedInput, "worker {} waited for worker {}, the pool has {}", rank, other,
         slots_.size());
  }
  const std::lock_guard lock(mutex_);
  accusations_.add(waited.generation, rank, waited.ranks);
}

void LocalLeader::join(PeerId peer, const wire::Join& join, Time now) {
  if (join.rank < 1 || static_cast<std::size_t>(join.rank) >= slots_.size()) {
    fail(ErrorCode::kPermissionDenied, "a Join of rank {}: the pool has {} workers", join.rank,
         slots_.size());
  }
  Slot& place = slot(join.rank);
  if (place.left_out) {  // and nobody else is expected
    fail(ErrorCode::kPermissionDenied, "a Join of rank {}: the pool goes on without it", join.rank);
  }
  if (place.peer != 0) {
    fail(ErrorCode::kAlreadyExists, "a second Join of rank {}, which is here", join.rank);
  }
  if (!peers_.introduce(peer, Peers::Role::kWorker, now, join.rank)) return;
  place.peer = peer;
  inbox_.post_joined({.rank = join.rank,
                      .host = join.host,
                      .address = join.address,
                      .backend = join.backend,
                      .threads = join.threads});
}

std::optional<Landing> LocalLeader::receive(const Peers::Peer& from, wire::MessageType type,
                                            std::span<const std::byte> header,
                                            std::size_t /*payload_bytes*/) {
  const bool known = wire::dispatch<wire::Items, wire::ControlRelay, wire::Progress, wire::Beat,
                                    wire::OrderWanted, wire::Leaving, wire::WaitedFor>(
      type, header, [&](auto message) { take(from.rank, std::move(message)); });
  if (!known) {
    fail(ErrorCode::kMalformedInput, "message type {} from worker {}", static_cast<int>(type),
         from.rank);
  }
  return {};
}

void LocalLeader::lost(const Peers::Peer& peer, const Status& reason) {
  inbox_.post_lost(peer.rank, {ErrorCode::kWorkerFailed,
                               fmt::format("worker {} is gone: {}", peer.rank, reason.message())});
}

/// The leader's own part of the round may take the processor that the transport's thread needs:
/// then the others would begin theirs when it has ended.
Status LocalLeader::send(std::span<const std::byte> order, Deadline deadline) {
  const auto leaving = std::make_shared<Leaving>();
  leaving->order.assign(order.begin(), order.end());
  leaving->changed.use(transport_);
  std::size_t sent = 0;
  for (std::size_t r = 1; r < slots_.size(); ++r) {
    Slot& to = slots_[r];
    if (to.peer == 0 || !to.gets_orders) continue;
    ++sent;
    peers_.send(to.peer, wire::PoolOrder{.number = ++to.last_order}, {leaving->order},
                [leaving](const Status& /*status*/) {
                  const std::lock_guard lock(leaving->mutex);
                  ++leaving->left;
                  leaving->changed.notify_all();
                });
  }
  std::unique_lock lock(leaving->mutex);
  const auto left = [&] { return leaving->left == sent; };
  const AwakeWait patience(deadline, clock_.now());
  if (leaving->changed.wait_until(clock_, lock, patience, left)) return {};
  return {ErrorCode::kDeadlineExceeded, "an order has not left: a worker does not read"};
}

Status LocalLeader::wait(std::vector<std::byte>& /*order*/, Deadline /*deadline*/,
                         const std::function<Status()>& /*look*/) {
  return {ErrorCode::kFailedPrecondition, "worker 0 sends orders, it waits for none"};
}

void LocalLeader::refuse(int rank, const wire::ItemsRefused& refused) {
  if (rank == 0) {
    queue_.refuse(refused);
  } else if (slot(rank).peer != 0) {
    peers_.send(slot(rank).peer, refused);
  }
}

void LocalLeader::answer(int rank, const wire::ControlRelayReply& verdicts) {
  if (rank == 0) {
    relays_.answer(verdicts);
  } else if (slot(rank).peer != 0) {
    peers_.send(slot(rank).peer, verdicts);
  }
}

void LocalLeader::leave_out(int rank, const Status& reason) {
  // One that was not taken in yet leaves its place to any other.
  if (slot(rank).gets_orders.exchange(false)) slot(rank).left_out = true;
  const PeerId worker = slot(rank).peer.exchange(0);
  if (worker == 0) return;
  peers_.send(worker, wire::Left{{reason.code(), reason.message()}});  // if it lives
  (void)peers_.close(worker);
}

void LocalLeader::expect(int rank) {
  slot(rank).left_out = false;
}

void LocalLeader::take_in(int rank) {
  slot(rank).last_order = 0;
  slot(rank).gets_orders = true;
}

void LocalLeader::regrouped(std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  accusations_.begin(generation);
}

std::optional<int> LocalLeader::accused() {
  const std::lock_guard lock(mutex_);
  return accusations_.verdict();
}

}  // namespace tributary
