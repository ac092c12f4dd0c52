// A message is one active message of UCX. Its header is the receiver's label, the type and our
// header; its data is the payload.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "comm/transport/message_limits.h"
#include "comm/ucx/ucx_connections.h"

namespace tributary::ucx {
namespace {

std::size_t total_bytes(std::span<const std::span<std::byte>> pieces) {
  std::size_t bytes = 0;
  for (const std::span<std::byte> piece : pieces) bytes += piece.size();
  return bytes;
}

/// Payloads of one peer at once: one arrives while the next is requested. No more, so that their
/// memory stays in the processor's cache.
constexpr std::size_t kMaxReceives = 2;
/// A larger payload waits at its sender until the receiver has memory for it. Left to itself, UCX
/// from 1.16 on sends any size over TCP at once, into memory of its own on the other side.
constexpr std::size_t kMaxEagerBytes = std::size_t{64} << 10;
/// Bytes that are copied right after they were inspected are still in the first-level cache of 32
/// KiB or more.
constexpr std::size_t kPart = std::size_t{16} << 10;

/// Copies to the pieces, on the progress thread. A thread of its own would have to be woken, and
/// with few cores it would take one from the sender (a fifth less bandwidth on two cores).
void land(const Landing& landing, const std::byte* payload) {
  for (std::span<std::byte> piece : landing.pieces) {
    while (!piece.empty()) {
      const std::span<const std::byte> part(payload, std::min(piece.size(), kPart));
      if (landing.inspect) landing.inspect(part);
      std::memcpy(piece.data(), part.data(), part.size());
      payload += part.size();
      piece = piece.subspan(part.size());
    }
  }
}

constexpr std::size_t kLabelBytes = sizeof(std::uint64_t);

/// 0, which is never a label, if the header is too short for one.
std::uint64_t label_of(std::span<const std::byte> header) {
  std::uint64_t label = 0;
  if (header.size() >= kLabelBytes) std::memcpy(&label, header.data(), kLabelBytes);
  return label;
}

template <typename Messages>
std::vector<std::uint64_t> numbers_of(const Messages& messages, PeerId peer) {
  std::vector<std::uint64_t> numbers;
  for (const auto& [number, message] : messages) {
    if (message.peer == peer) numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

void Connections::set_handlers() {
  const auto set = [this](unsigned number, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t param{};
    param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
    param.id = number;
    param.flags = UCP_AM_FLAG_WHOLE_MSG;
    param.cb = callback;
    param.arg = this;
    check("UCX: handler of messages", ucp_worker_set_am_recv_handler(worker_.get(), &param));
  };
  set(kMessage, [](void* self, const void* header, std::size_t header_bytes, void* data,
                   std::size_t bytes, const ucp_am_recv_param_t* param) {
    return static_cast<Connections*>(self)->on_message(
        {static_cast<const std::byte*>(header), header_bytes}, data, bytes, *param);
  });
  set(kHello, [](void* arg, const void* header, std::size_t header_bytes, void* /*data*/,
                 std::size_t /*bytes*/, const ucp_am_recv_param_t* /*param*/) {
    auto* self = static_cast<Connections*>(arg);
    Peer* peer = self->open_peer(label_of({static_cast<const std::byte*>(header), header_bytes}));
    if (peer != nullptr && peer->accepted && !peer->welcomed) self->hellos_.push_back(peer->id);
    return UCS_OK;
  });
  set(kWelcome, [](void* arg, const void* header, std::size_t header_bytes, void* /*data*/,
                   std::size_t /*bytes*/, const ucp_am_recv_param_t* /*param*/) {
    auto* self = static_cast<Connections*>(arg);
    Peer* peer = self->open_peer(label_of({static_cast<const std::byte*>(header), header_bytes}));
    if (peer != nullptr && !peer->accepted) self->on_welcome(*peer);
    return UCS_OK;
  });
}

void Connections::on_welcome(Peer& peer) {
  if (std::exchange(peer.welcomed, true)) return;
  peer.route->hello = Route::Hello::kAnswered;
  send_held(peer);
}

void Connections::send_held(Peer& peer) {
  for (OutgoingMessage& message : std::exchange(peer.held, {})) {
    peer.outgoing_bytes -= cost_of(message);
    send_now(peer, std::move(message), kMessage);
  }
}

void Connections::send(PeerId id, OutgoingMessage message) {
  Peer* peer = find(id);
  if (peer == nullptr || peer->state != State::kOpen) {
    call_later(message.sent, {ErrorCode::kNotFound, fmt::format("peer {}: not connected", id)});
    return;
  }
  if (const Status size =
          check_size(config_, message.type, message.header.size(), message.payload_bytes());
      !size.ok()) {
    call_later(message.sent, size);
    return;
  }
  const std::size_t cost = cost_of(message);
  if (const Status room = check_room(config_, peer->name, peer->outgoing_bytes, cost); !room.ok()) {
    call_later(message.sent, room);
    end(*peer, room);
  } else if (peer->welcomed) {
    send_now(*peer, std::move(message), kMessage);
  } else {
    peer->outgoing_bytes += cost;
    peer->held.push_back(std::move(message));
  }
}

/// Sends hellos as soon as UCX has a socket for them.
bool Connections::say_hellos() {
  bool any = false;
  std::erase_if(greeting_, [&](PeerId id) {
    Peer* peer = find(id);
    if (peer == nullptr || peer->state != State::kOpen) return true;
    const ucs_status_t status = say_hello(*peer);
    if (status == UCS_ERR_NO_RESOURCE) return false;
    any = true;
    if (status != UCS_OK) {
      failed_.emplace_back(id, to_status(fmt::format("connection to {}", peer->name), status));
    }
    return true;
  });
  return any;
}

/// Sends at once or not at all (UCS_ERR_NO_RESOURCE): UCX would precede a waiting message with a
/// request to the other side, and that request must come from the other side instead (see Routes).
ucs_status_t Connections::say_hello(Peer& peer) {
  std::array<std::byte, kMessagePrefixBytes> header{};
  std::memcpy(header.data(), &peer.contact.label, kLabelBytes);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FLAG_FORCE_IMM_CMPL;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  const ucs_status_t status = UCS_PTR_STATUS(ucp_am_send_nbx(
      peer.route->endpoint, kHello, header.data(), header.size(), nullptr, 0, &param));
  if (status == UCS_OK && peer.route->hello == Route::Hello::kNone) {
    peer.route->hello = Route::Hello::kSaid;
  }
  return status;
}

void Connections::send_now(Peer& peer, OutgoingMessage message, unsigned number) {
  const std::size_t cost = cost_of(message);
  std::array<std::byte, kMessagePrefixBytes> prefix{};
  std::memcpy(prefix.data(), &peer.contact.label, kLabelBytes);
  std::memcpy(prefix.data() + kLabelBytes, &message.type, sizeof(message.type));
  message.header.insert(message.header.begin(), prefix.begin(), prefix.end());
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  const std::size_t payload_bytes = message.payload_bytes();
  // Eager messages keep their order.
  if (payload_bytes == 0) {
    param.flags = UCP_AM_SEND_FLAG_EAGER;
  } else if (payload_bytes > kMaxEagerBytes) {
    param.flags = UCP_AM_SEND_FLAG_RNDV;
  }
  // With this flag UCX asks for the other side's endpoint unless it knows it.
  if (number == kWelcome) param.flags |= UCP_AM_SEND_FLAG_REPLY;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t status, void* self) {
    const std::uint64_t sent = *static_cast<Worker::RequestTag*>(request);
    ucp_request_free(request);
    static_cast<Connections*>(self)->finish_send(
        sent, status == UCS_OK ? Status() : to_status("sending", status));
  };
  std::vector<ucp_dt_iov_t> pieces;
  const void* payload = nullptr;
  std::size_t count = 0;
  if (message.payload.size() == 1) {
    payload = message.payload.front().data();
    count = payload_bytes;
  } else if (payload_bytes > 0) {
    for (const std::span<const std::byte> piece : message.payload) {
      if (piece.empty()) continue;
      pieces.push_back({const_cast<std::byte*>(piece.data()), piece.size()});  // it only reads
    }
    payload = pieces.data();
    count = pieces.size();
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    param.datatype = ucp_dt_make_iov();
  }
  ucs_status_ptr_t request = ucp_am_send_nbx(peer.route->endpoint, number, message.header.data(),
                                             message.header.size(), payload, count, &param);
  if (UCS_PTR_IS_ERR(request)) {
    const Status status =
        to_status(fmt::format("sending to {}", peer.name), UCS_PTR_STATUS(request));
    call_later(message.sent, status);
    failed_.emplace_back(peer.id, status);
  } else if (request == nullptr) {
    call_later(message.sent, {});
  } else {
    const std::uint64_t send = next_number_++;
    *static_cast<Worker::RequestTag*>(request) = send;
    peer.outgoing_bytes += cost;
    ++peer.sends;
    sends_.emplace(send, Send{.peer = peer.id,
                              .cost = cost,
                              .header = std::move(message.header),
                              .pieces = std::move(pieces),
                              .sent = std::move(message.sent),
                              .deadline = Clock::now() + config_.send_timeout});
  }
}

void Connections::finish_send(std::uint64_t number, const Status& status) {
  const auto found = sends_.find(number);
  if (found == sends_.end()) return;
  Peer* peer = find(found->second.peer);
  if (peer != nullptr) {
    peer->outgoing_bytes -= found->second.cost;
    --peer->sends;
    if (peer->unread) room_ = true;
    if (peer->flushed && peer->sends == 0) failed_.emplace_back(peer->id, Status());
  }
  call_later(found->second.sent,
             status.ok() || peer == nullptr || peer->reason.ok() ? status : peer->reason);
  sends_.erase(found);
}

ucs_status_t Connections::on_message(std::span<const std::byte> header, void* data,
                                     std::size_t bytes, const ucp_am_recv_param_t& param) {
  // Returning UCS_OK without a receive drops the payload.
  Peer* sender = header.size() < kMessagePrefixBytes ? nullptr : open_peer(label_of(header));
  if (sender == nullptr) return UCS_OK;
  Peer& peer = *sender;
  std::uint16_t type = 0;
  std::memcpy(&type, header.data() + kLabelBytes, sizeof(type));
  header = header.subspan(kMessagePrefixBytes);
  if (const Status size = check_size(config_, type, header.size(), bytes); !size.ok()) {
    failed_.emplace_back(peer.id, Status(size.code(), fmt::format("connection to {}: {}", peer.name,
                                                                  size.message())));
    return UCS_OK;
  }
  if (!std::exchange(peer.spoken, true)) accepted_.settle(peer.id);
  std::optional<Landing> landing = handler_.on_message(peer.id, type, header, bytes);
  if (bytes == 0 || !landing) return UCS_OK;

  if (total_bytes(landing->pieces) != bytes) {
    call_later(landing->done,
               {ErrorCode::kInternal, "the landing's size differs from the payload's"});
    return UCS_OK;
  }
  if ((param.recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    // Fetched as soon as there is memory for it, after earlier ones.
    announced_.push_back({peer.id, std::move(*landing), data, bytes});
    room_ = true;
    return UCS_INPROGRESS;
  }
  land(*landing, static_cast<const std::byte*>(data));
  call_later(landing->done, {});
  return UCS_OK;
}

/// Starts fetching payloads that wait at their senders, as far as there is room.
bool Connections::receive_announced() {
  if (!std::exchange(room_, false)) return false;
  const auto now = Clock::now();
  for (auto next = announced_.begin(); next != announced_.end();) {
    Peer& peer = *find(next->peer);  // never null: finish() removes what its peer has announced
    std::optional<BounceBuffers::Buffer> buffer;
    const bool unread = peer.accepted && peer.outgoing_bytes > config_.max_unread_bytes;
    if (unread && !std::exchange(peer.unread, true)) {
      handler_.on_limit(
          TransportLimit::kUnread,
          {ErrorCode::kPoolFull, fmt::format("connection from {}: {} bytes wait to be read",
                                             peer.name, peer.outgoing_bytes)});
    }
    if (!unread && peer.state != State::kClosing && peer.receives < kMaxReceives) {
      peer.unread = false;
      buffer = buffers_.acquire(next->bytes, now);
    }
    if (!buffer) {
      ++next;
      continue;
    }
    Announced announced = std::move(*next);
    next = announced_.erase(next);
    receive(peer, std::move(announced.landing), announced.descriptor, std::move(*buffer),
            announced.bytes);
  }
  return true;
}

void Connections::receive(Peer& peer, Landing landing, void* descriptor,
                          BounceBuffers::Buffer buffer, std::size_t bytes) {
  const std::uint64_t number = next_number_++;
  ++peer.receives;
  const Receive& receive =
      receives_
          .emplace(number, Receive{.peer = peer.id,
                                   .landing = std::move(landing),
                                   .buffer = std::move(buffer),
                                   .deadline = Clock::now() + config_.send_timeout})
          .first->second;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = this;
  param.cb.recv_am = [](void* request, ucs_status_t status, std::size_t /*length*/, void* self) {
    const std::uint64_t received = *static_cast<Worker::RequestTag*>(request);
    ucp_request_free(request);
    static_cast<Connections*>(self)->finish_receive(
        received, status == UCS_OK ? Status() : to_status("receiving", status));
  };
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_.get(), descriptor, receive.buffer.data(), bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    *static_cast<Worker::RequestTag*>(request) = number;
  } else {
    const ucs_status_t status = UCS_PTR_STATUS(request);
    finish_receive(number, status == UCS_OK ? Status() : to_status("receiving", status));
  }
}

/// Called when UCX has written the payload, or reports nothing more about it.
void Connections::finish_receive(std::uint64_t number, const Status& status) {
  const auto found = receives_.find(number);
  if (found == receives_.end()) return;
  Receive& receive = found->second;
  if (status.ok()) {
    land(receive.landing, receive.buffer.data());
    buffers_.release(std::move(receive.buffer));
  } else {
    buffers_.quarantine(std::move(receive.buffer), Clock::now());
  }
  Peer* peer = find(receive.peer);
  if (peer != nullptr) --peer->receives;
  room_ = true;
  call_later(receive.landing.done,
             status.ok() || peer == nullptr || peer->reason.ok() ? status : peer->reason);
  receives_.erase(found);
}

/// Finishes messages that UCX never got, or has not completed when it has released the peer.
void Connections::finish_messages_of(const Peer& peer) {
  for (const OutgoingMessage& message : peer.held) call_later(message.sent, peer.reason);
  if (peer.sends > 0) {
    for (const std::uint64_t number : numbers_of(sends_, peer.id)) finish_send(number, peer.reason);
  }
  finish_receives_of(peer);
}

/// Called when the peer's payloads are not wanted any more.
void Connections::finish_receives_of(const Peer& peer) {
  for (const std::uint64_t number : numbers_of(receives_, peer.id)) {
    finish_receive(number, peer.reason);
  }
  std::erase_if(announced_, [&](const Announced& announced) {
    if (announced.peer != peer.id) return false;
    ucp_am_data_release(worker_.get(), announced.descriptor);
    call_later(announced.landing.done, peer.reason);
    return true;
  });
}

}  // namespace tributary::ucx
