#include "deploy/client/worker_connections.h"

#include <fmt/format.h>

#include <utility>

namespace tributary {
namespace {

/// How long a transport may take to give payloads back after their connection was cut. It takes
/// milliseconds; more is a bug that must not hang the caller.
constexpr auto kGiveBackTimeout = std::chrono::seconds(30);

wire::MessageType reply_type(wire::MessageType request) {
  switch (request) {
    case wire::MessageType::kRows:
      return wire::MessageType::kRowsReply;
    case wire::MessageType::kRound:
      return wire::MessageType::kRoundReply;
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
      reply.message);
}

WorkerReply decode_reply(wire::MessageType type, std::span<const std::byte> header) {
  WorkerReply reply;
  switch (type) {
    case wire::MessageType::kRowsReply:
      reply.message = wire::decode_rows_reply(header);
      break;
    case wire::MessageType::kRoundReply:
      reply.message = wire::decode_round_reply(header);
      break;
    case wire::MessageType::kControlReply:
      reply.message = wire::decode_control_reply(header);
      break;
    default:
      fail(ErrorCode::kMalformedInput, "message of type {}", static_cast<int>(type));
  }
  return reply;
}

Status check_payload(const WorkerReply& reply, const std::string& address) {
  const auto* round = std::get_if<wire::RoundReply>(&reply.message);
  if (round == nullptr || round->crc32c == wire::crc32c(reply.payload.span())) return {};
  return {ErrorCode::kCorrupt,
          fmt::format("worker {}: {} bytes of output do not have their checksum", address,
                      reply.payload.size)};
}

}  // namespace

struct WorkerConnections::Connection {
  enum class State { kGreeting, kReady, kFailed };
  std::string address;
  PeerId peer = 0;
  State state = State::kGreeting;
  Status failure;
};

struct WorkerConnections::Call::Shared {
  std::condition_variable changed;
  bool failed = false;
};

struct WorkerConnections::Call::Pending {
  std::shared_ptr<Shared> call;
  std::uint64_t request = 0;
  std::string address;
  PeerId peer = 0;
  wire::MessageType expects{};
  std::size_t max_reply_bytes = 0;
  std::size_t reserved = 0;
  bool payload_in_use = false;  // the caller's memory
  bool done = false;
  Status status;
  WorkerReply reply;
};

WorkerConnections::WorkerConnections(const TransportConfig& config,
                                     const MakeTransport& make_transport,
                                     std::size_t max_in_flight_bytes)
    : max_in_flight_bytes_(max_in_flight_bytes), owner_(make_transport(config, *this)) {
  transport_ = owner_.get();  // nothing is called before the first connect()
}

WorkerConnections::~WorkerConnections() {
  owner_.reset();
}

std::shared_ptr<WorkerConnections::Connection> WorkerConnections::open(const Greeting& greeting) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(greeting.address);
    if (found != connections_.end()) return found->second;
  }
  const std::scoped_lock connecting(connect_mutex_);
  {
    const std::scoped_lock lock(mutex_);
    const auto found = connections_.find(greeting.address);
    if (found != connections_.end()) return found->second;
    early_.clear();
  }
  auto connection = std::make_shared<Connection>();
  connection->address = greeting.address;
  connection->peer = transport_->connect(greeting.address);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto gone = early_.find(connection->peer); gone != early_.end()) {
      connection->state = Connection::State::kFailed;
      connection->failure = gone->second;
      return connection;
    }
    connections_[greeting.address] = connection;
    peers_[connection->peer] = connection;
  }
  transport_->send(
      connection->peer,
      {.type = static_cast<std::uint16_t>(wire::MessageType::kHello),
       .header = wire::encode(wire::Hello{
           .shape = greeting.shape, .sequence_id = greeting.sequence_id, .token = greeting.token}),
       .payload = {},
       .sent = {}});
  return connection;
}

void WorkerConnections::connect(std::span<const Greeting> greetings, Deadline deadline) {
  std::vector<std::shared_ptr<Connection>> opened;
  opened.reserve(greetings.size());
  for (const Greeting& greeting : greetings) opened.push_back(open(greeting));
  std::unique_lock lock(mutex_);
  for (const auto& connection : opened) {
    if (!greeted_.wait_until(lock, deadline.when(),
                             [&] { return connection->state != Connection::State::kGreeting; })) {
      fail(ErrorCode::kDeadlineExceeded, "worker {}: no answer to the greeting",
           connection->address);
    }
    connection->failure.throw_if_error();
  }
}

void WorkerConnections::welcome(PeerId peer, std::span<const std::byte> header) {
  const wire::Welcome welcome = wire::decode_welcome(header);
  if (!welcome.outcome.ok()) {
    drop(peer, {welcome.outcome.code, welcome.outcome.message});
    transport_->disconnect(peer);
    return;
  }
  const std::scoped_lock lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second->state = Connection::State::kReady;
  greeted_.notify_all();
}

std::optional<Landing> WorkerConnections::on_reply(PeerId peer, wire::MessageType type,
                                                   std::span<const std::byte> header,
                                                   std::size_t payload_bytes) {
  // Shared with the transport: the reply lands in memory that nobody else has.
  auto reply = std::make_shared<WorkerReply>(decode_reply(type, header));
  const std::uint64_t request = request_of(*reply);
  std::string address;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = pending_.find(request);
    if (found == pending_.end()) return std::nullopt;  // its caller has gone: late
    const Call::Pending& pending = *found->second;
    if (pending.peer != peer || pending.expects != type) {
      fail(ErrorCode::kMalformedInput, "reply of type {} to request {}, which expects {}",
           static_cast<int>(type), request, static_cast<int>(pending.expects));
    }
    if (payload_bytes > pending.max_reply_bytes) {
      fail(ErrorCode::kMalformedInput, "reply of {} bytes to request {}, which expects up to {}",
           payload_bytes, request, pending.max_reply_bytes);
    }
    address = pending.address;
  }
  if (payload_bytes == 0) {
    Status status = check_payload(*reply, address);
    const std::scoped_lock lock(mutex_);
    finish(request, std::move(status), std::move(*reply));
    return std::nullopt;
  }
  reply->payload = OwnedBytes(payload_bytes);
  return Landing{.pieces = {reply->payload.span()},
                 .done = [this, reply, request, address](const Status& landed) {
                   if (!landed.ok()) return;  // on_disconnect follows and ends the request
                   Status status = check_payload(*reply, address);
                   const std::scoped_lock lock(mutex_);
                   finish(request, std::move(status), std::move(*reply));
                 }};
}

std::optional<Landing> WorkerConnections::on_message(PeerId peer, std::uint16_t type,
                                                     std::span<const std::byte> header,
                                                     std::size_t payload_bytes) {
  try {
    const auto message = static_cast<wire::MessageType>(type);
    if (message == wire::MessageType::kWelcome) {
      welcome(peer, header);
      return std::nullopt;
    }
    return on_reply(peer, message, header, payload_bytes);
  } catch (const std::exception& error) {
    drop(peer, {ErrorCode::kMalformedInput, fmt::format("a worker sent: {}", error.what())});
    transport_->disconnect(peer);
    return std::nullopt;
  }
}

void WorkerConnections::on_disconnect(PeerId peer, const Status& reason) {
  drop(peer,
       reason.code() == ErrorCode::kPoolLost
           ? reason
           : Status(ErrorCode::kPoolLost, fmt::format("connection lost: {}", reason.message())));
}

void WorkerConnections::drop(PeerId peer, const Status& reason) {
  const std::scoped_lock lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    early_[peer] = reason;
    return;
  }
  const auto connection = found->second;
  connection->state = Connection::State::kFailed;
  connection->failure = {reason.code(),
                         fmt::format("worker {}: {}", connection->address, reason.message())};
  peers_.erase(found);
  connections_.erase(connection->address);
  greeted_.notify_all();
  std::vector<std::uint64_t> lost;
  for (const auto& [request, pending] : pending_) {
    if (pending->peer == peer) lost.push_back(request);
  }
  for (const std::uint64_t request : lost) finish(request, connection->failure, {});
}

void WorkerConnections::finish(std::uint64_t request, Status status, WorkerReply reply) {
  const auto found = pending_.find(request);
  if (found == pending_.end()) return;
  Call::Pending& pending = *found->second;
  pending.done = true;
  pending.status = std::move(status);
  pending.reply = std::move(reply);
  const auto* rows = std::get_if<wire::RowsReply>(&pending.reply.message);
  if (!pending.status.ok() || (rows != nullptr && !rows->outcome.ok())) {
    pending.call->failed = true;
  }
  in_flight_bytes_ -= std::exchange(pending.reserved, 0);
  room_.notify_all();
  pending.call->changed.notify_all();
  pending_.erase(found);
}

WorkerConnections::Call::Call(WorkerConnections& connections, Deadline deadline)
    : connections_(connections), deadline_(deadline), shared_(std::make_shared<Shared>()) {}

WorkerConnections::Call::~Call() {
  release_payloads();
  const std::scoped_lock lock(connections_.mutex_);
  for (const auto& pending : requests_) {
    connections_.finish(pending->request, {ErrorCode::kDeadlineExceeded, "given up"}, {});
  }
  connections_.in_flight_bytes_ -= reserved_;
  connections_.room_.notify_all();
}

bool WorkerConnections::Call::reserve(std::size_t bytes) {
  WorkerConnections& c = connections_;
  std::unique_lock lock(c.mutex_);
  // One that is larger than the whole bound goes alone.
  const bool room = c.room_.wait_until(lock, deadline_.when(), [&] {
    return c.in_flight_bytes_ == 0 || c.in_flight_bytes_ + bytes <= c.max_in_flight_bytes_;
  });
  if (!room) return false;
  c.in_flight_bytes_ += bytes;
  reserved_ += bytes;
  return true;
}

std::size_t WorkerConnections::Call::send(
    const std::string& address, wire::MessageType type,
    const std::function<std::vector<std::byte>(std::uint64_t)>& encode,
    std::span<const std::byte> payload, std::shared_ptr<const void> owner,
    std::size_t max_reply_bytes) {
  WorkerConnections& c = connections_;
  auto pending = std::make_shared<Pending>();
  pending->call = shared_;
  pending->address = address;
  pending->expects = reply_type(type);
  pending->max_reply_bytes = max_reply_bytes;
  pending->payload_in_use = !payload.empty() && owner == nullptr;
  pending->reserved = std::exchange(reserved_, 0);
  requests_.push_back(pending);
  {
    const std::scoped_lock lock(c.mutex_);
    pending->request = c.next_request_++;
    c.pending_[pending->request] = pending;
    const auto found = c.connections_.find(address);
    if (found == c.connections_.end() || found->second->state != Connection::State::kReady) {
      pending->payload_in_use = false;
      c.finish(pending->request,
               {ErrorCode::kPoolLost, fmt::format("worker {}: the connection is lost", address)},
               {});
      return requests_.size() - 1;
    }
    pending->peer = found->second->peer;
  }
  c.transport_->send(pending->peer,
                     {.type = static_cast<std::uint16_t>(type),
                      .header = encode(pending->request),
                      .payload = payload,
                      .sent = [&c, pending, owner = std::move(owner)](const Status& status) {
                        const std::scoped_lock lock(c.mutex_);
                        pending->payload_in_use = false;
                        pending->call->changed.notify_all();
                        if (status.ok()) return;
                        c.finish(pending->request,
                                 {ErrorCode::kPoolLost,
                                  fmt::format("worker {}: {}", pending->address, status.message())},
                                 {});
                      }});
  return requests_.size() - 1;
}

Status WorkerConnections::Call::wait(std::size_t index) {
  const std::shared_ptr<Pending>& pending = requests_[index];
  std::unique_lock lock(connections_.mutex_);
  if (!shared_->changed.wait_until(lock, deadline_.when(), [&] { return pending->done; })) {
    connections_.finish(pending->request,
                        {ErrorCode::kDeadlineExceeded,
                         fmt::format("worker {}: no answer before the deadline", pending->address)},
                        {});
  }
  return pending->status;
}

WorkerReply& WorkerConnections::Call::reply(std::size_t index) {
  return requests_[index]->reply;
}

bool WorkerConnections::Call::failed() const {
  const std::scoped_lock lock(connections_.mutex_);
  return shared_->failed;
}

void WorkerConnections::Call::release_payloads() {
  std::set<PeerId> holding;
  const auto released = [&] {
    holding.clear();
    for (const auto& pending : requests_) {
      if (pending->payload_in_use) holding.insert(pending->peer);
    }
    return holding.empty();
  };
  std::unique_lock lock(connections_.mutex_);
  if (shared_->changed.wait_until(lock, deadline_.when(), released)) return;
  lock.unlock();
  // They have not read what was sent to them in all this time: nothing is lost with them.
  for (const PeerId peer : std::set<PeerId>(holding)) {
    connections_.drop(peer, {ErrorCode::kPoolLost, "it did not take its rows before the deadline"});
    connections_.transport_->disconnect(peer);
  }
  lock.lock();
  shared_->changed.wait_until(lock, Deadline::after(kGiveBackTimeout).when(), released);
}

}  // namespace tributary
