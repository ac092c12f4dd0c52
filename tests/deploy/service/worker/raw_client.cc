#include "tests/deploy/service/worker/raw_client.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "deploy/service/transport/data_transport.h"

namespace tributary::test {

using wire::MessageType;

RawClient::RawClient() : transport_(make_data_transport()({}, *this)) {}

RawClient::~RawClient() {
  transport_.reset();
}

PeerId RawClient::connect(const std::string& address, const SequenceInfo& as) {
  return transport_->connect(address, {.id = as.id, .secret = as.token});
}

void RawClient::send(PeerId peer, MessageType type, std::vector<std::byte> header,
                     std::vector<std::byte> payload) {
  auto held = std::make_shared<std::vector<std::byte>>(std::move(payload));
  transport_->send(peer, {.type = static_cast<std::uint16_t>(type),
                          .header = std::move(header),
                          .payload = {*held},
                          .sent = [held](const Status&) {}});
}

template <typename Value, typename Key>
Value RawClient::wait(std::map<Key, Value>& values, Key key, const char* what) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [&] { return values.contains(key); })) {
    fail(ErrorCode::kDeadlineExceeded, "no {}", what);
  }
  Value value = std::move(values.at(key));
  values.erase(key);
  return value;
}

wire::Welcome RawClient::hello(PeerId peer, const wire::Hello& hello) {
  send(peer, MessageType::kHello, encode(hello));
  return wait(welcomes_, peer, "welcome");
}

PeerId RawClient::enter(const std::string& address, const PoolShape& shape,
                        const SequenceInfo& sequence) {
  const PeerId peer = connect(address, sequence);
  wire::Hello hello;
  hello.shape = shape;
  const auto welcome = this->hello(peer, hello);
  EXPECT_TRUE(welcome.outcome.ok()) << welcome.outcome.message;
  return peer;
}

void RawClient::prove(PeerId peer, const SequenceInfo& sequence) {
  Session session{};
  {
    const std::lock_guard lock(mutex_);
    session = sessions_.at(peer);
  }
  const auto proof = proof::further_proof(sequence.token, session, sequence.id);
  send(peer, MessageType::kProve, encode(wire::Prove{.items = {{sequence.id, proof}}}));
}

std::uint64_t RawClient::send_rows(PeerId peer, wire::Rows rows, std::vector<std::byte> payload,
                                   std::optional<std::uint32_t> crc) {
  rows.request = ++last_request_;
  rows.crc32c = crc.value_or(wire::crc32c(payload));
  send(peer, MessageType::kRows, encode(rows), std::move(payload));
  return rows.request;
}

wire::RowsReply RawClient::wait_rows(std::uint64_t request) {
  return wait(rows_, request, "reply to rows");
}

std::uint64_t RawClient::send_round(PeerId peer, wire::LayerRequest round,
                                    std::vector<std::byte> payload,
                                    std::optional<std::uint32_t> crc) {
  round.request = ++last_request_;
  round.crc32c = crc.value_or(wire::crc32c(payload));
  send(peer, MessageType::kLayerRequest, encode(round), std::move(payload));
  return round.request;
}

RawClient::RoundResult RawClient::wait_round(std::uint64_t request) {
  return wait(rounds_, request, "reply to a round");
}

std::vector<float> RawClient::RoundResult::floats() const {
  std::vector<float> values(output.size() / sizeof(float));
  if (!output.empty()) std::memcpy(values.data(), output.data(), output.size());
  return values;
}

wire::ControlReply RawClient::control(PeerId peer, std::vector<wire::ControlItem> items) {
  wire::Control control;
  control.request = ++last_request_;
  control.items = std::move(items);
  send(peer, MessageType::kControl, encode(control));
  return wait(controls_, control.request, "reply to a control");
}

Status RawClient::wait_disconnect(PeerId peer) {
  return wait(disconnects_, peer, "end of the connection");
}

std::uint64_t RawClient::send_pull(PeerId peer, wire::Pull pull) {
  pull.request = ++last_request_;
  send(peer, MessageType::kPull, encode(pull));
  return pull.request;
}

RawClient::PullResult RawClient::wait_pull(std::uint64_t request) {
  return wait(pulls_, request, "reply to a pull");
}

template <typename Result>
Landing RawClient::land(std::shared_ptr<Result> result, std::vector<std::byte> Result::*payload,
                        std::map<std::uint64_t, Result>& results) {
  const std::span<std::byte> place((*result).*payload);
  return {{place}, [this, result, payload, &results](const Status& ok) {
            if (!ok.ok()) return;
            EXPECT_EQ(wire::crc32c((*result).*payload), result->reply.crc32c);
            {
              const std::lock_guard done(mutex_);
              results[result->reply.request] = *result;
            }
            changed_.notify_all();
          }};
}

void RawClient::on_open(PeerId peer, const Proven& who) {
  const std::lock_guard lock(mutex_);
  sessions_[peer] = who.session;
}

std::optional<Landing> RawClient::on_message(PeerId peer, std::uint16_t type,
                                             std::span<const std::byte> header,
                                             std::size_t payload_bytes) {
  std::optional<Landing> landing;
  {
    const std::lock_guard lock(mutex_);
    switch (static_cast<MessageType>(type)) {
      case MessageType::kWelcome:
        welcomes_[peer] = wire::decode<wire::Welcome>(header);
        break;
      case MessageType::kRowsReply: {
        const auto reply = wire::decode<wire::RowsReply>(header);
        rows_[reply.request] = reply;
        break;
      }
      case MessageType::kControlReply: {
        const auto reply = wire::decode<wire::ControlReply>(header);
        controls_[reply.request] = reply;
        break;
      }
      case MessageType::kLayerReply: {
        auto result = std::make_shared<RoundResult>();
        result->reply = wire::decode<wire::LayerReply>(header);
        const std::uint64_t request = result->reply.request;
        if (payload_bytes == 0) {
          rounds_[request] = *result;
          break;
        }
        result->output.resize(payload_bytes);
        landing = land(result, &RoundResult::output, rounds_);
        break;
      }
      case MessageType::kPullReply: {
        auto result = std::make_shared<PullResult>();
        result->reply = wire::decode<wire::PullReply>(header);
        if (payload_bytes == 0) {
          pulls_[result->reply.request] = *result;
          break;
        }
        result->rows.resize(payload_bytes);
        landing = land(result, &PullResult::rows, pulls_);
        break;
      }
      case MessageType::kProveReply:
      case MessageType::kNotUsed:
        break;
      default:
        ADD_FAILURE() << "message of type " << type;
    }
  }
  changed_.notify_all();
  return landing;
}

void RawClient::on_disconnect(PeerId peer, const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    disconnects_[peer] = reason;
  }
  changed_.notify_all();
}

}  // namespace tributary::test
