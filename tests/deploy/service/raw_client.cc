#include "tests/deploy/service/raw_client.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "comm/wire/codec.h"
#include "deploy/service/transport/data_transport.h"

namespace tributary {
namespace {

constexpr auto kWait = std::chrono::seconds(20);

}  // namespace

RawClient::RawClient(const SequenceHandle& admitted)
    : transport_(make_data_transport()({}, *this)) {
  peer_ =
      transport_->connect(admitted.addresses.at(0), {.id = admitted.id, .secret = admitted.token});
}

RawClient::~RawClient() {
  transport_.reset();
}

void RawClient::send(wire::MessageType type, std::vector<std::byte> header,
                     std::vector<std::byte> payload) {
  auto kept = std::make_shared<std::vector<std::byte>>(std::move(payload));
  transport_->send(peer_, {.type = static_cast<std::uint16_t>(type),
                           .header = std::move(header),
                           .payload = {*kept},
                           .sent = [kept](const Status&) {}});
}

RawClient::Message RawClient::receive() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kWait, [this] { return !received_.empty() || gone_; })) {
    throw std::runtime_error("the worker does not answer");
  }
  if (received_.empty()) throw std::runtime_error("disconnected: " + gone_->message());
  Message message = std::move(received_.front());
  received_.pop_front();
  return message;
}

bool RawClient::disconnected() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kWait, [this] { return gone_.has_value(); });
}

wire::Welcome RawClient::hello(const SequenceHandle& admitted) {
  send(wire::MessageType::kHello,
       encode(wire::Hello{
           .shape = admitted.shape, .sequence_id = admitted.id, .token = admitted.token}));
  return wire::decode<wire::Welcome>(receive().header);
}

wire::Outcome RawClient::push(const wire::Rows& rows, std::vector<std::byte> payload) {
  send(wire::MessageType::kRows, encode(rows), std::move(payload));
  return wire::decode<wire::RowsReply>(receive().header).outcome;
}

wire::LayerReply RawClient::round(const wire::LayerRequest& round, std::vector<std::byte> payload,
                                  std::vector<std::byte>* output) {
  send(wire::MessageType::kLayerRequest, encode(round), std::move(payload));
  Message reply = receive();
  if (output != nullptr) *output = std::move(reply.payload);
  return wire::decode<wire::LayerReply>(reply.header);
}

wire::ControlReply RawClient::control(const wire::Control& control) {
  send(wire::MessageType::kControl, encode(control));
  return wire::decode<wire::ControlReply>(receive().header);
}

std::optional<Landing> RawClient::on_message(PeerId /*peer*/, std::uint16_t type,
                                             std::span<const std::byte> header,
                                             std::size_t payload_bytes) {
  auto message = std::make_shared<Message>();
  message->type = static_cast<wire::MessageType>(type);
  message->header.assign(header.begin(), header.end());
  message->payload.resize(payload_bytes);
  const auto arrived = [this, message] {
    const std::lock_guard lock(mutex_);
    received_.push_back(std::move(*message));
    changed_.notify_all();
  };
  if (payload_bytes == 0) {
    arrived();
    return std::nullopt;
  }
  return Landing{.pieces = {std::span(message->payload)}, .done = [arrived](const Status& status) {
                   if (status.ok()) arrived();
                 }};
}

void RawClient::on_disconnect(PeerId /*peer*/, const Status& reason) {
  const std::lock_guard lock(mutex_);
  gone_ = reason;
  changed_.notify_all();
}

}  // namespace tributary
