#include "deploy/service/client/worker_connections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <set>
#include <utility>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "comm/wire/mac.h"
#include "deploy/service/client/worker_replies.h"

namespace tributary {
namespace {

/// The time that a transport has to give payloads back after their connection was cut. It takes
/// milliseconds; more is a bug that must not hang the caller.
constexpr auto kGiveBackTimeout = std::chrono::seconds(30);
/// The limit for a message that a transport is about to read, or a reply that is landing, at the
/// deadline.
constexpr auto kLastMoment = std::chrono::milliseconds(10);

std::uint64_t random_number() {
  std::array<std::uint8_t, sizeof(std::uint64_t)> bytes{};
  wire::fill_random(bytes);
  return std::bit_cast<std::uint64_t>(bytes);
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
                                     std::size_t max_in_flight_bytes, Clock& clock,
                                     TellWaiting tell)
    : clock_(clock),
      next_number_(random_number()),
      budget_(max_in_flight_bytes, clock),
      tell_(std::move(tell)),
      owner_(make_transport(config, *this)) {
  transport_ = owner_.get();  // nothing is called before the first connect()
  budget_.work_with(transport_);
}

WorkerConnections::~WorkerConnections() {
  owner_.reset();
}

void WorkerConnections::look_after(Time& look) {
  const Section section(*this);
  send_due();
  const Time now = clock_.now();
  if (now < look) return;
  if (silent_) silent_(requests_.silent(now));
  look = now + RequestTable::kSilence;
}

void WorkerConnections::send(const std::shared_ptr<WorkerRequest>& request) {
  const Section section(*this);
  request->call->changed.use(transport_);
  requests_.add(request, clock_.now());
  dispatch(request);
}

void WorkerConnections::dispatch(const std::shared_ptr<WorkerRequest>& request) {
  const auto known = peers_.find(request->address);
  if (known == peers_.end()) {
    if (auto pause = requests_.absences().pause(request->address, clock_.now())) {
      return send_later(request, pause->until, std::move(pause->why));
    }
    open(request);
    return;
  }
  Connection& connection = connections_.at(known->second);
  if (connection.welcomed && connection.sequences.full()) {
    connection.replaced = true;  // it ends when its sequences have
    peers_.erase(known);
    open(request);
  } else if (connection.welcomed) {
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
  requests_.absences().connecting(request->address, clock_.now());
}

void WorkerConnections::on_open(PeerId peer, const Proven& who) {
  const Section section(*this);
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.session = who.session;
  connection.sequences.opened(connection.greeting.sequence_id, connection.greeting.token);
  send(peer, wire::Hello{.shape = connection.greeting.shape});
}

void WorkerConnections::transmit(std::span<const std::shared_ptr<WorkerRequest>> requests,
                                 PeerId peer) {
  wire::Prove further;
  std::vector<std::shared_ptr<WorkerRequest>> ready;
  ready.reserve(requests.size());
  for (const auto& request : requests) {
    if (!request->done && prove(request, peer, further)) ready.push_back(request);
  }
  if (!further.items.empty()) send(peer, further);
  for (const auto& request : ready) {
    if (!request->done) transmit(request, peer);
  }
}

bool WorkerConnections::prove(const std::shared_ptr<WorkerRequest>& request, PeerId peer,
                              wire::Prove& further) {
  using Standing = ProvenSequences::Standing;
  Connection& connection = connections_.at(peer);
  bool undecided = false;
  for (const Greeting& greeting : request->greetings) {
    const Standing standing = connection.sequences.standing(greeting.sequence_id, greeting.token);
    if (standing == Standing::kOther) {
      finish(request->number, wrong_token(connection.address, greeting.sequence_id));
      return false;
    }
    undecided |= standing == Standing::kUndecided;
  }
  if (undecided) {
    connection.held.push_back(request);
    return false;
  }
  for (const Greeting& greeting : request->greetings) {
    const Standing standing = connection.sequences.standing(greeting.sequence_id, greeting.token);
    if (standing != Standing::kUnknown) continue;
    connection.sequences.asked(greeting.sequence_id, greeting.token);
    further.items.push_back(
        {.sequence_id = greeting.sequence_id,
         .proof = proof::further_proof(greeting.token, connection.session, greeting.sequence_id)});
    if (further.items.size() == wire::Prove::Item::kMost) send(peer, std::exchange(further, {}));
  }
  return true;
}

Status WorkerConnections::check(const std::string& address, std::uint64_t sequence_id,
                                const wire::Token& token) {
  const std::scoped_lock lock(mutex_);
  const auto known = peers_.find(address);
  if (known == peers_.end()) return {};
  const ProvenSequences& sequences = connections_.at(known->second).sequences;
  const bool other = sequences.standing(sequence_id, token) == ProvenSequences::Standing::kOther;
  return other ? wrong_token(address, sequence_id) : Status{};
}

/// Nothing of ours runs there. What is sent later takes another connection.
void WorkerConnections::not_used(PeerId peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.held.empty() ||
      !requests_.sent_to(peer).empty()) {
    return;
  }
  static_cast<void>(take(peer));
  transport_->disconnect(peer);
}

void WorkerConnections::transmit(const std::shared_ptr<WorkerRequest>& request, PeerId peer) {
  if (request->repeats > 0 && !request->repeatable) {
    return finish(request->number, {ErrorCode::kUnavailable,
                                    fmt::format("{}; whether the worker has done it is not known",
                                                request->refusal.message())});
  }
  request->peer = peer;
  const bool holds = !request->payload.empty();
  if (holds) ++request->in_use;
  transport_->send(peer, {.type = static_cast<std::uint16_t>(request->type),
                          .header = request->header,
                          .payload = request->payload,
                          .sent = [this, request, holds](const Status& status) {
                            // Inside send(), under the mutex, the request has not ended.
                            if (holds) --request->in_use;
                            if (status.ok() && !request->done) return;
                            const Section section(*this);
                            request->call->changed.notify_all();
                            // For other reasons the connection ends: on_disconnect follows.
                            if (status.code() != ErrorCode::kTooLarge) return;
                            finish(request->number,
                                   {status.code(), fmt::format("worker {}: {}", request->address,
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
    requests_.absences().end(connection.address);
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
  requests_.absences().end(refused->address);
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
  const std::shared_ptr<WorkerRequest> request = requests_.find(number);
  if (!request) return std::nullopt;  // its caller has gone: late
  if (request->peer != peer || reply_type(request->type) != type) {
    fail(ErrorCode::kMalformedInput, "reply of type {} to request {} of type {}",
         static_cast<int>(type), number, static_cast<int>(request->type));
  }
  std::vector<std::span<std::byte>> pieces;
  if (request->landing) pieces = request->landing(reply);
  std::size_t expected = 0;
  for (const std::span<std::byte> piece : pieces) expected += piece.size();
  if (payload_bytes != expected) {
    finish(number, {ErrorCode::kMalformedInput,
                    fmt::format("worker {}: answered with {} bytes, expected {}", request->address,
                                payload_bytes, expected)});
    return std::nullopt;
  }
  if (payload_bytes == 0) {
    if (requests_.repeats(request, reply, clock_.now())) {
      request->call->changed.notify_all();  // its caller looks when the time has come
    } else {
      finish(number, {}, std::move(reply));
    }
    return std::nullopt;
  }
  return land(request, std::move(pieces), std::move(reply));
}

Landing WorkerConnections::land(const std::shared_ptr<WorkerRequest>& request,
                                std::vector<std::span<std::byte>> pieces, WorkerReply reply) {
  ++request->in_use;
  const auto crc = std::make_shared<std::uint32_t>(0);
  return {.pieces = std::move(pieces),
          .done =
              [this, request, crc, reply = std::move(reply)](const Status& landed) {
                const Section section(*this);
                --request->in_use;
                if (request->done) request->call->changed.notify_all();
                if (!landed.ok()) return;  // on_disconnect follows and ends the request
                if (*crc == checksum_of(reply)) {
                  finish(request->number, {}, reply);
                } else {
                  finish(request->number,
                         {ErrorCode::kCorrupt,
                          fmt::format("worker {}: its answer does not have its checksum",
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
    if (message == wire::MessageType::kProveReply) {
      const auto reply = wire::decode<wire::ProveReply>(header);
      const Section section(*this);
      const auto found = connections_.find(peer);
      if (found == connections_.end()) return std::nullopt;
      found->second.sequences.judged(reply);
      transmit(std::exchange(found->second.held, {}), peer);
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
  switch (reason.code()) {
    case ErrorCode::kPermissionDenied:
      // The transport's proof, or a certificate, has failed: the greeting counts as refused.
      return refused(peer, reason);
    case ErrorCode::kPoolLost:  // a transport that knows
    case ErrorCode::kMalformedInput:
    case ErrorCode::kUnsupported:
    case ErrorCode::kInvalidArgument:
      return drop(peer, reason);
    default:
      return interrupted(peer, reason);
  }
}

void WorkerConnections::interrupted(PeerId peer, const Status& reason) {
  std::optional<Connection> gone = take(peer);
  if (!gone) return;
  const Time now = clock_.now();
  const Status why(ErrorCode::kUnavailable,
                   fmt::format("worker {}: {}", gone->address, reason.message()));
  const Time next_try = gone->replaced ? now : requests_.absences().failed(gone->address, why, now);
  for (const auto& request : requests_.sent_to(peer)) {
    ++request->repeats;
    gone->held.push_back(request);
  }
  for (const auto& request : gone->held) {
    if (!request->done) send_later(request, next_try, why);
  }
}

void WorkerConnections::send_later(const std::shared_ptr<WorkerRequest>& request, Time when,
                                   Status reason) {
  requests_.repeat(request, when, std::move(reason));
  request->call->changed.notify_all();  // its caller looks when the time has come
}

void WorkerConnections::send_due() {
  for (const auto& request : requests_.take_due(clock_.now())) {
    if (!request->done) dispatch(request);
  }
}

std::optional<WorkerConnections::Connection> WorkerConnections::take(PeerId peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end()) return std::nullopt;
  Connection connection = std::move(found->second);
  connections_.erase(found);
  if (!connection.replaced) peers_.erase(connection.address);
  return connection;
}

void WorkerConnections::drop(PeerId peer, const Status& reason) {
  const std::optional<Connection> gone = take(peer);
  if (!gone) return;
  const Status failure(reason.code(),
                       fmt::format("worker {}: {}", gone->address, reason.message()));
  for (const auto& request : gone->held) finish(request->number, failure);
  for (const auto& request : requests_.sent_to(peer)) finish(request->number, failure);
}

void WorkerConnections::finish(std::uint64_t number, Status status, WorkerReply reply) {
  const std::shared_ptr<WorkerRequest> request = requests_.find(number);
  if (!request) return;
  requests_.remove(number);
  request->done = true;
  request->status = std::move(status);
  request->reply = std::move(reply);
  if (has_failed(*request)) request->call->failed = true;
  budget_.give_back(std::exchange(request->reserved, 0));
  ended_.push_back(request->call);
}

void WorkerConnections::wake_ended() {
  for (const auto& call : std::exchange(ended_, {})) call->changed.notify_all();
}

Status WorkerConnections::wait(WorkerRequest& request, Deadline deadline) {
  std::unique_lock lock(mutex_);
  Time look = request.since + RequestTable::kSilence;
  while (!request.done) {
    const Time until = std::min({deadline.when(), look, requests_.next_due()});
    const auto ready = [&] { return request.done || requests_.next_due() < until; };
    request.call->changed.wait_until(clock_, lock, until, ready);
    if (request.done) break;
    const Time now = clock_.now();
    if (deadline.expired(now)) {
      finish(request.number, late_status(request));
      break;
    }
    send_due();
    wake_ended();
    if (requests_.absences().ask_now(request.address)) look = now;
    if (now < look) continue;
    if (silent_) silent_(requests_.silent(now));
    look = now + RequestTable::kSilence;
    if (!tell_) continue;
    if (const std::string text = requests_.absences().complaint(request.address, now);
        !text.empty()) {
      lock.unlock();
      tell_(text);
      lock.lock();
    }
  }
  return request.status;
}

bool WorkerConnections::unreachable(const std::string& address) {
  const std::scoped_lock lock(mutex_);
  return requests_.absences().failing(address);
}

void WorkerConnections::watch(std::function<void(std::vector<SilentWorker>)> silent) {
  const std::scoped_lock lock(mutex_);
  silent_ = std::move(silent);
}

void WorkerConnections::give_up(const std::string& address, const Status& reason) {
  const Section section(*this);
  requests_.absences().end(address);
  if (const auto known = peers_.find(address); known != peers_.end()) {
    transport_->disconnect(known->second);
    connections_.erase(known->second);
    peers_.erase(known);
  }
  const Status failure(reason.code(), fmt::format("worker {}: {}", address, reason.message()));
  for (const auto& request : requests_.at(address)) finish(request->number, failure);
}

void WorkerConnections::give_up(const std::string& address,
                                std::span<const std::uint64_t> sequence_ids, const Status& reason) {
  const Section section(*this);
  const Status failure(reason.code(), fmt::format("worker {}: {}", address, reason.message()));
  for (const auto& request : requests_.at(address)) {
    const bool theirs = std::ranges::all_of(request->greetings, [&](const Greeting& greeting) {
      return std::ranges::find(sequence_ids, greeting.sequence_id) != sequence_ids.end();
    });
    if (theirs) finish(request->number, failure);
  }
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
  MessageCondition& changed = requests.front()->call->changed;
  // A request sent a moment before the deadline is not worth a connection.
  const Time patience = std::max(deadline.when(), clock_.now() + kLastMoment);
  if (changed.wait_until(clock_, lock, patience, released)) return;
  // They have not read their messages in all this time: nothing is lost with them.
  for (const PeerId peer : holding) {
    transport_->disconnect(peer);
    interrupted(
        peer, {ErrorCode::kUnavailable, "it did not take what was sent to it before the deadline"});
  }
  wake_ended();
  changed.wait_until(clock_, lock, clock_.now() + kGiveBackTimeout, released);
}

}  // namespace tributary
