#include "deploy/service/client/worker_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"

namespace tributary {
namespace {

/// The time that a transport has to give payloads back after their connection was cut. It takes
/// milliseconds; more is a bug that must not hang the caller.
constexpr auto kGiveBackTimeout = std::chrono::seconds(30);
/// The limit for a message that a transport is about to read, or a reply that is landing, at the
/// deadline.
constexpr auto kLastMoment = std::chrono::milliseconds(10);
/// A connection that has served more sequences proves the ones in use again.
constexpr std::size_t kMaxProven = 65'536;

std::uint64_t random_number() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

wire::MessageType reply_type(wire::MessageType request) {
  switch (request) {
    case wire::MessageType::kRows:
      return wire::MessageType::kRowsReply;
    case wire::MessageType::kLayerRequest:
      return wire::MessageType::kLayerReply;
    default:
      return wire::MessageType::kControlReply;
  }
}

std::uint64_t request_of(const WorkerReply& reply) {
  return std::visit(
      [](const auto& message) -> std::uint64_t {
        if constexpr (requires { message.request; }) {
          return message.request;
        } else {
          return 0;
        }
      },
      reply);
}

/// It has ended with an error, or with a refusal of its rows.
bool has_failed(const WorkerRequest& request) {
  const auto* rows = std::get_if<wire::RowsReply>(&request.reply);
  return !request.status.ok() || (rows != nullptr && !rows->outcome.ok());
}

WorkerReply decode_reply(wire::MessageType type, std::span<const std::byte> header) {
  switch (type) {
    case wire::MessageType::kRowsReply:
      return wire::decode<wire::RowsReply>(header);
    case wire::MessageType::kLayerReply:
      return wire::decode<wire::LayerReply>(header);
    case wire::MessageType::kControlReply:
      return wire::decode<wire::ControlReply>(header);
    default:
      fail(ErrorCode::kMalformedInput, "message of type {}", static_cast<int>(type));
  }
}

}  // namespace

class WorkerConnections::Section {
 public:
  explicit Section(WorkerConnections& connections)
      : connections_(connections), lock_(connections.mutex_) {}
  ~Section() {
    const auto ended = std::exchange(connections_.ended_, {});
    lock_.unlock();
    for (const auto& call : ended) call->changed.notify_all();
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  WorkerConnections& connections_;
  std::unique_lock<std::mutex> lock_;
};

WorkerConnections::WorkerConnections(const TransportConfig& config,
                                     const MakeTransport& make_transport,
                                     std::size_t max_in_flight_bytes)
    : next_number_(random_number()),
      budget_(max_in_flight_bytes),
      owner_(make_transport(config, *this)) {
  transport_ = owner_.get();  // nothing is called before the first connect()
}

WorkerConnections::~WorkerConnections() {
  owner_.reset();
}

void WorkerConnections::send(const std::shared_ptr<WorkerRequest>& request) {
  const Section section(*this);
  request->since = Deadline::Clock::now();
  pending_[request->number] = request;
  dispatch(request);
}

void WorkerConnections::dispatch(const std::shared_ptr<WorkerRequest>& request) {
  const auto known = peers_.find(request->address);
  if (known == peers_.end()) {
    open(request);
    return;
  }
  Connection& connection = connections_.at(known->second);
  if (connection.welcomed) {
    transmit(std::span(&request, 1), known->second);
  } else {
    connection.held.push_back(request);
  }
}

void WorkerConnections::open(const std::shared_ptr<WorkerRequest>& request) {
  const Greeting& greeting = request->greetings.back();
  const Introduction introduction{.id = greeting.sequence_id, .secret = greeting.token};
  PeerId peer = 0;
  Status opened = status_of([&] { peer = transport_->connect(request->address, introduction); });
  if (!opened.ok()) {
    finish(request->number, std::move(opened));
    return;
  }
  peers_[request->address] = peer;
  connections_[peer] = {.address = request->address, .greeting = greeting, .held = {request}};
}

void WorkerConnections::on_open(PeerId peer, const Proven& who) {
  const Section section(*this);
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.session = who.session;
  connection.proven[connection.greeting.sequence_id] = connection.greeting.token;
  send(peer, wire::Hello{.shape = connection.greeting.shape});
}

void WorkerConnections::transmit(std::span<const std::shared_ptr<WorkerRequest>> requests,
                                 PeerId peer) {
  prove(requests, peer);
  for (const auto& request : requests) {
    if (!request->done) transmit(request, peer);
  }
}

void WorkerConnections::prove(std::span<const std::shared_ptr<WorkerRequest>> requests,
                              PeerId peer) {
  Connection& connection = connections_.at(peer);
  if (connection.proven.size() > kMaxProven) connection.proven.clear();
  wire::Prove further;
  for (const auto& request : requests) {
    if (request->done) continue;
    for (const Greeting& greeting : request->greetings) {
      const auto [known, added] =
          connection.proven.try_emplace(greeting.sequence_id, greeting.token);
      if (!added && known->second == greeting.token) continue;
      known->second = greeting.token;
      further.items.push_back({.sequence_id = greeting.sequence_id,
                               .proof = proof::further_proof(greeting.token, connection.session,
                                                             greeting.sequence_id)});
      if (further.items.size() < wire::Prove::Item::kMost) continue;
      send(peer, std::exchange(further, {}));
    }
  }
  if (!further.items.empty()) send(peer, further);
}

/// Nothing of ours runs there. What is sent later takes another connection.
void WorkerConnections::not_used(PeerId peer) {
  const auto waits = [peer](const auto& pending) { return pending.second->peer == peer; };
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.held.empty() ||
      std::ranges::any_of(pending_, waits)) {
    return;
  }
  static_cast<void>(take(peer));
  transport_->disconnect(peer);
}

void WorkerConnections::transmit(const std::shared_ptr<WorkerRequest>& request, PeerId peer) {
  request->peer = peer;
  const bool holds = !request->payload.empty();
  if (holds) ++request->in_use;
  transport_->send(peer, {.type = static_cast<std::uint16_t>(request->type),
                          .header = std::move(request->header),
                          .payload = std::move(request->payload),
                          .sent = [this, request, holds](const Status& status) {
                            // Inside send(), under the mutex, the request has not ended.
                            if (holds) --request->in_use;
                            if (status.ok() && !request->done) return;
                            const Section section(*this);
                            request->call->changed.notify_all();
                            if (status.ok()) return;
                            finish(request->number, {ErrorCode::kPoolLost,
                                                     fmt::format("worker {}: {}", request->address,
                                                                 status.message())});
                          }});
}

void WorkerConnections::welcomed(PeerId peer, const wire::Welcome& welcome) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  if (connection.welcomed) fail(ErrorCode::kMalformedInput, "a second welcome");
  if (welcome.outcome.ok()) {
    connection.welcomed = true;
    transmit(std::exchange(connection.held, {}), peer);
    return;
  }
  const Status reason(welcome.outcome.code, welcome.outcome.message);
  refused(peer, reason);
  transport_->disconnect(peer);
}

void WorkerConnections::refused(PeerId peer, const Status& why) {
  const std::optional<Connection> refused = take(peer);
  if (!refused) return;
  const Status reason(why.code(), fmt::format("worker {}: {}", refused->address, why.message()));
  // The others' greetings are not removed: a sequence that the worker knows gets in with its own.
  for (const auto& request : refused->held) {
    if (request->done) continue;
    std::erase_if(request->greetings, [&](const Greeting& greeting) {
      return greeting.sequence_id == refused->greeting.sequence_id &&
             greeting.token == refused->greeting.token;
    });
    if (request->greetings.empty()) {
      finish(request->number, reason);
    } else {
      dispatch(request);
    }
  }
}

std::optional<Landing> WorkerConnections::on_reply(PeerId peer, wire::MessageType type,
                                                   std::span<const std::byte> header,
                                                   std::size_t payload_bytes) {
  WorkerReply reply = decode_reply(type, header);
  const std::uint64_t number = request_of(reply);
  const Section section(*this);
  const auto found = pending_.find(number);
  if (found == pending_.end()) return std::nullopt;  // its caller has gone: late
  const std::shared_ptr<WorkerRequest> request = found->second;
  if (request->peer != peer || reply_type(request->type) != type) {
    fail(ErrorCode::kMalformedInput, "reply of type {} to request {} of type {}",
         static_cast<int>(type), number, static_cast<int>(request->type));
  }
  std::vector<std::span<std::byte>> pieces;
  if (const auto* round = std::get_if<wire::LayerReply>(&reply)) pieces = request->landing(*round);
  std::size_t expected = 0;
  for (const std::span<std::byte> piece : pieces) expected += piece.size();
  if (payload_bytes != expected) {
    finish(number, {ErrorCode::kMalformedInput,
                    fmt::format("worker {}: answered with {} bytes of output, expected {}",
                                request->address, payload_bytes, expected)});
    return std::nullopt;
  }
  if (payload_bytes == 0) {
    finish(number, {}, std::move(reply));
    return std::nullopt;
  }
  return land(request, std::move(pieces), std::get<wire::LayerReply>(std::move(reply)));
}

Landing WorkerConnections::land(const std::shared_ptr<WorkerRequest>& request,
                                std::vector<std::span<std::byte>> pieces, wire::LayerReply reply) {
  ++request->in_use;
  const auto crc = std::make_shared<std::uint32_t>(0);
  return {.pieces = std::move(pieces),
          .done =
              [this, request, crc, reply = std::move(reply)](const Status& landed) {
                const Section section(*this);
                --request->in_use;
                if (request->done) request->call->changed.notify_all();
                if (!landed.ok()) return;  // on_disconnect follows and ends the request
                if (*crc == reply.crc32c) {
                  finish(request->number, {}, reply);
                } else {
                  finish(request->number,
                         {ErrorCode::kCorrupt,
                          fmt::format("worker {}: its output does not have its checksum",
                                      request->address)});
                }
              },
          .inspect = [crc](std::span<const std::byte> part) { *crc = wire::crc32c(part, *crc); }};
}

std::optional<Landing> WorkerConnections::on_message(PeerId peer, std::uint16_t type,
                                                     std::span<const std::byte> header,
                                                     std::size_t payload_bytes) {
  try {
    const auto message = static_cast<wire::MessageType>(type);
    if (message == wire::MessageType::kWelcome) {
      const auto welcome = wire::decode<wire::Welcome>(header);
      const Section section(*this);
      welcomed(peer, welcome);
      return std::nullopt;
    }
    if (message == wire::MessageType::kNotUsed) {
      const Section section(*this);
      not_used(peer);
      return std::nullopt;
    }
    return on_reply(peer, message, header, payload_bytes);
  } catch (const std::exception& error) {
    const Section section(*this);
    drop(peer, {ErrorCode::kMalformedInput, fmt::format("a worker sent: {}", error.what())});
    transport_->disconnect(peer);
    return std::nullopt;
  }
}

void WorkerConnections::on_disconnect(PeerId peer, const Status& reason) {
  const Section section(*this);
  // The transport's proof has failed: the greeting counts as refused.
  if (reason.code() == ErrorCode::kPermissionDenied) return refused(peer, reason);
  // A worker that is only full has lost nothing: its caller may try again.
  const bool full = reason.code() == ErrorCode::kPoolFull;
  drop(peer,
       reason.code() == ErrorCode::kPoolLost
           ? reason
           : Status(full ? ErrorCode::kUnavailable : ErrorCode::kPoolLost,
                    fmt::format("connection {}: {}", full ? "refused" : "lost", reason.message())));
}

std::optional<WorkerConnections::Connection> WorkerConnections::take(PeerId peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return std::nullopt;
  Connection connection = std::move(found->second);
  connections_.erase(found);
  peers_.erase(connection.address);
  return connection;
}

void WorkerConnections::drop(PeerId peer, const Status& reason) {
  const std::optional<Connection> gone = take(peer);
  if (!gone) return;
  const Status failure(reason.code(),
                       fmt::format("worker {}: {}", gone->address, reason.message()));
  std::vector<std::uint64_t> lost;
  for (const auto& request : gone->held) lost.push_back(request->number);
  for (const auto& [number, request] : pending_) {
    if (request->peer == peer) lost.push_back(number);
  }
  for (const std::uint64_t number : lost) finish(number, failure);
}

void WorkerConnections::finish(std::uint64_t number, Status status, WorkerReply reply) {
  const auto found = pending_.find(number);
  if (found == pending_.end()) return;
  const std::shared_ptr<WorkerRequest> request = std::move(found->second);
  pending_.erase(found);
  request->done = true;
  request->status = std::move(status);
  request->reply = std::move(reply);
  if (has_failed(*request)) request->call->failed = true;
  budget_.give_back(std::exchange(request->reserved, 0));
  ended_.push_back(request->call);
}

Status WorkerConnections::wait(WorkerRequest& request, Deadline deadline) {
  std::unique_lock lock(mutex_);
  auto look = request.since + kSilence;
  while (!request.call->changed.wait_until(lock, std::min(deadline.when(), look),
                                           [&] { return request.done.load(); })) {
    if (deadline.expired()) {
      finish(request.number,
             {ErrorCode::kDeadlineExceeded,
              fmt::format("worker {}: no answer {}", request.address,
                          request.peer == 0 ? "to the greeting" : "before the deadline")});
      break;
    }
    if (silent_) silent_(silent_workers());
    look = Deadline::Clock::now() + kSilence;
  }
  return request.status;
}

std::vector<SilentWorker> WorkerConnections::silent_workers() const {
  const auto limit = Deadline::Clock::now() - kSilence;
  std::map<PeerId, SilentWorker> silent;
  for (const auto& [number, request] : pending_) {
    const auto peer = peers_.find(request->address);
    if (request->since > limit || peer == peers_.end()) continue;
    silent.try_emplace(peer->second,
                       SilentWorker{peer->second, request->address, request->greetings.back()});
  }
  std::vector<SilentWorker> workers;
  workers.reserve(silent.size());
  for (auto& [peer, worker] : silent) workers.push_back(std::move(worker));
  return workers;
}

void WorkerConnections::watch(std::function<void(std::vector<SilentWorker>)> silent) {
  const std::scoped_lock lock(mutex_);
  silent_ = std::move(silent);
}

void WorkerConnections::give_up(PeerId peer, const Status& reason) {
  const Section section(*this);
  if (!connections_.contains(peer)) return;
  drop(peer, reason);
  transport_->disconnect(peer);
}

bool WorkerConnections::failed(const WorkerRequest::Call& call) {
  const std::scoped_lock lock(mutex_);
  return call.failed;
}

bool WorkerConnections::failed(const WorkerRequest& request) {
  const std::scoped_lock lock(mutex_);
  return request.done && has_failed(request);
}

void WorkerConnections::release(std::span<const std::shared_ptr<WorkerRequest>> requests,
                                Deadline deadline) {
  if (requests.empty()) return;
  std::unique_lock lock(mutex_);
  for (const auto& request : requests) {
    finish(request->number, {ErrorCode::kDeadlineExceeded, "given up"});
  }
  std::set<PeerId> holding;
  const auto released = [&] {
    holding.clear();
    for (const auto& request : requests) {
      if (request->in_use > 0) holding.insert(request->peer);
    }
    return holding.empty();
  };
  std::condition_variable& changed = requests.front()->call->changed;
  // A request sent a moment before the deadline is not worth a connection.
  const auto patience = std::max(deadline.when(), Deadline::after(kLastMoment).when());
  if (changed.wait_until(lock, patience, released)) return;
  // They have not read their messages in all this time: nothing is lost with them.
  for (const PeerId peer : holding) {
    drop(peer, {ErrorCode::kPoolLost, "it did not take what was sent to it before the deadline"});
    transport_->disconnect(peer);
  }
  for (const auto& call : std::exchange(ended_, {})) call->changed.notify_all();
  changed.wait_until(lock, Deadline::after(kGiveBackTimeout).when(), released);
}

}  // namespace tributary
