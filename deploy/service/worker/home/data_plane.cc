#include "deploy/service/worker/home/data_plane.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "deploy/service/protocol/dispatch_message.h"

namespace tributary {

using wire::MessageType;

namespace {

/// A shortage that comes and goes is counted each time, and logged at this interval.
constexpr std::chrono::seconds kPauseLogInterval{10};
constexpr std::chrono::seconds kLimitLogInterval{1};
/// A connection whose sequences have all ended is told so at the first tick after their end, and
/// closed at the second: within a second in all, with half a second for a client that is about to
/// prove a further sequence.
constexpr std::chrono::milliseconds kTellUnused{400};
constexpr std::chrono::milliseconds kCloseUnused{900};

}  // namespace

Status compare_shapes(const PoolShape& client, const PoolShape& pool) {
  const auto difference = find_difference(client, pool);
  if (!difference) return {};
  return {ErrorCode::kInvalidArgument,
          fmt::format("{}: the client says {}, the pool has {}", difference->field,
                      difference->first, difference->second)};
}

DataPlane::DataPlane(DataPlaneConfig config, const DataPlaneParts& parts,
                     const MakeTransport& make_transport, Clock& clock)
    : config_(std::move(config)), parts_(parts), clock_(clock), serves_(config_.serves) {
  parts_.peers.open([&]() -> Transport& {
    transport_ = make_transport(config_.transport, *this);
    return *transport_;
  });
  parts_.leader.work_with(transport_.get());
}

DataPlane::~DataPlane() {
  parts_.leader.work_with(nullptr);
  parts_.peers.stop();
}

void DataPlane::on_open(PeerId peer, const Proven& who) {
  const Time now = clock_.now();
  parts_.peers.find(peer, now);  // its time for a Hello begins
  parts_.access.open(peer, who, now);
}

std::optional<Landing> DataPlane::on_message(PeerId peer, std::uint16_t type,
                                             std::span<const std::byte> header,
                                             std::size_t payload_bytes) {
  using Role = Peers::Role;
  const Time now = clock_.now();
  const Peers::Peer from = parts_.peers.find(peer, now);
  const auto what = static_cast<MessageType>(type);
  std::optional<Landing> landing;
  const Status status = status_of([&] {
    switch (from.role) {
      case Role::kRefused:
      case Role::kClosing:
        return;
      case Role::kNew:
        from_stranger(peer, what, header, now);
        return;
      case Role::kClient:
        landing = from_client(peer, what, header, payload_bytes, now);
        return;
      case Role::kWorker:
      case Role::kLeader:
        landing = parts_.leader.receive(from, what, header, payload_bytes);
        return;
    }
  });
  if (!status.ok()) {
    parts_.rows.count_malformed();
    close(peer, status);
  }
  return landing;
}

void DataPlane::on_disconnect(PeerId peer, const Status& reason) {
  parts_.access.close(peer);
  if (const auto gone = parts_.peers.forget(peer)) ended(*gone, reason);
}

void DataPlane::on_accepting_paused(const Status& reason) {
  ++accept_pauses_;
  const Time now = clock_.now();
  if (!config_.log || now - pause_logged_ < kPauseLogInterval) return;
  pause_logged_ = now;
  config_.log(fmt::format("worker {}: {}", config_.rank, reason.message()));
}

void DataPlane::on_limit(TransportLimit limit, const Status& what) {
  limited(static_cast<wire::Limit>(limit), what.message(), clock_.now());
}

void DataPlane::limited(wire::Limit limit, const std::string& what, Time now, std::uint64_t times) {
  const std::lock_guard lock(mutex_);
  Limited& one = limits_.at(static_cast<std::size_t>(limit));
  one.times += times;
  if (!config_.log || now - one.at < kLimitLogInterval) return;
  config_.log(fmt::format("worker {}: limit {}: {} times: {}", config_.rank,
                          wire::limit_name(limit), one.times - one.logged, what));
  one.at = now;
  one.logged = one.times;
}

void DataPlane::close(PeerId peer, const Status& reason) {
  parts_.access.close(peer);
  if (const auto gone = parts_.peers.close(peer)) ended(*gone, reason);
}

void DataPlane::ended(const Peers::Peer& peer, const Status& reason) {
  if (peer.role == Peers::Role::kWorker || peer.role == Peers::Role::kLeader) {
    parts_.leader.lost(peer, reason);
  }
}

std::optional<Landing> DataPlane::from_client(PeerId peer, MessageType type,
                                              std::span<const std::byte> header,
                                              std::size_t payload_bytes, Time now) {
  struct Requests {
    DataPlaneParts& to;
    PeerId peer;
    std::size_t payload_bytes;
    Time now;
    std::optional<Landing>& landing;
    void operator()(const wire::Rows& rows) const {
      const bool allowed = to.access.allowed(peer, rows.sequence_id);
      landing = to.rows.receive(peer, rows, allowed, payload_bytes);
    }
    void operator()(const wire::LayerRequest& request) const {
      landing = to.home.receive(peer, request, payload_bytes);
    }
    void operator()(const wire::Pull& pull) const {
      const bool allowed = to.access.allowed(peer, pull.sequence_id);
      if (!allowed) to.rows.count_unproven(1);
      to.pulls.receive(peer, pull, allowed);
    }
    void operator()(const wire::Control& control) const { to.home.receive(peer, control); }
    void operator()(const wire::Prove& further) const {
      const wire::ProveReply reply = to.access.prove(peer, further, now);
      const auto wrong = std::ranges::count(reply.items, ErrorCode::kPermissionDenied,
                                            &wire::ProveReply::Item::code);
      if (wrong > 0) to.rows.count_unproven(static_cast<std::size_t>(wrong));
      to.peers.send(peer, reply);
    }
  };
  std::optional<Landing> landing;
  if (!wire::dispatch<wire::Rows, wire::LayerRequest, wire::Pull, wire::Control, wire::Prove>(
          type, header, Requests{parts_, peer, payload_bytes, now, landing})) {
    fail(ErrorCode::kMalformedInput, "message type {} from a client", static_cast<int>(type));
  }
  return landing;
}

void DataPlane::from_stranger(PeerId peer, MessageType type, std::span<const std::byte> header,
                              Time now) {
  struct Introductions {
    DataPlane& plane;
    PeerId peer;
    Time now;
    void operator()(const wire::Hello& hello) const { plane.hello(peer, hello, now); }
    void operator()(const wire::Join& join) const {
      if (!plane.parts_.access.allowed(peer, wire::kPoolItself)) {
        fail(ErrorCode::kPermissionDenied, "a Join of rank {} by one who is not of this pool",
             join.rank);
      }
      plane.parts_.leader.join(peer, join, now);
    }
  };
  if (!wire::dispatch<wire::Hello, wire::Join>(type, header, Introductions{*this, peer, now})) {
    fail(ErrorCode::kMalformedInput, "message type {} before Hello", static_cast<int>(type));
  }
}

void DataPlane::hello(PeerId peer, const wire::Hello& hello, Time now) {
  wire::Welcome welcome{
      .version = wire::kVersion, .outcome = {}, .rank = config_.rank, .shape = config_.shape};
  if (hello.magic != wire::kMagic) {
    fail(ErrorCode::kMalformedInput, "Hello begins with {:#x}, expected {:#x}", hello.magic,
         wire::kMagic);
  }
  if (!serves_) {  // its client tries again
    return close(peer, {ErrorCode::kUnavailable, "this worker has come, and is not taken in yet"});
  }
  if (hello.version != wire::kVersion) {
    welcome.outcome = {ErrorCode::kUnsupported,
                       fmt::format("the client speaks version {} of the data plane, this worker {}",
                                   hello.version, wire::kVersion)};
  } else {
    const Status same = compare_shapes(hello.shape, config_.shape);
    welcome.outcome = {same.code(), same.message()};
  }
  // A refused client stays until it has read why: tick() ends it.
  const auto role = welcome.outcome.ok() ? Peers::Role::kClient : Peers::Role::kRefused;
  if (parts_.peers.introduce(peer, role, now)) parts_.peers.send(peer, welcome);
}

void DataPlane::tick(Time now) {
  for (const PeerId peer : parts_.peers.idle_since(now - config_.hello_timeout)) {
    limited(wire::Limit::kHello, "a connection has not introduced itself in time, or was refused",
            now);
    close(peer, {});
  }
  close_idle(now);
  for (const PeerId peer : parts_.rows.late_senders()) close(peer, {});
  wire::Beat beat;
  beat.rank = config_.rank;
  beat.connections = parts_.peers.clients();
  beat.accept_pauses = accept_pauses_;
  parts_.rows.add_counts(beat);
  parts_.pulls.add_counts(beat);
  if (const std::uint64_t refused = parts_.queue.refused(); refused != requests_refused_) {
    limited(wire::Limit::kRequestBytes,
            fmt::format("{} bytes of layer requests are held", parts_.queue.bytes()), now,
            refused - std::exchange(requests_refused_, refused));
  }
  if (const std::uint64_t refused = parts_.relays.refused(); refused != controls_refused_) {
    limited(wire::Limit::kControls, "controls wait for the leader, of all or of one sequence", now,
            refused - std::exchange(controls_refused_, refused));
  }
  if (const std::uint64_t refused = parts_.pulls.refused(); refused != pulls_refused_) {
    limited(wire::Limit::kPulledBytes, "pulled rows wait to be sent, of all or of one sequence",
            now, refused - std::exchange(pulls_refused_, refused));
  }
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < limits_.size(); ++i) beat.limited.at(i) = limits_.at(i).times;
  }
  parts_.leader.post(beat);
}

void DataPlane::close_idle(Time now) {
  for (const AccessCheck::Idle& idle : parts_.access.idle(now)) {
    if (idle.since >= kCloseUnused) {
      limited(wire::Limit::kEndedSequence, "the sequences of a connection have ended", now);
      close(idle.peer, {});
    } else if (idle.since >= kTellUnused) {
      parts_.peers.send(idle.peer, wire::NotUsed{});
    }
  }
}

}  // namespace tributary
