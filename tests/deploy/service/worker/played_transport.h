// A transport that the test plays: it decides what arrives when, and sees what is sent.
#pragma once

#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/codec.h"
#include "deploy/service/protocol/message_type.h"

namespace tributary::test {

/// Like a real transport, it acts on disconnect() only later: messages that have arrived until then
/// are still delivered.
class PlayedTransport final : public Transport {
 public:
  std::function<void(PeerId)> on_its_way;  // called when the handler disconnects a peer
  std::vector<wire::MessageType> sent;
  std::vector<std::vector<std::byte>> headers;  // of `sent`
  std::set<PeerId> gone;

  [[nodiscard]] std::string_view name() const noexcept override { return "played"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }
  [[nodiscard]] PeerId connect(const std::string& /*address*/,
                               const Introduction& /*introduction*/) override {
    return 1;
  }
  void send(PeerId peer, OutgoingMessage message) override {
    if (!gone.contains(peer)) {
      sent.push_back(static_cast<wire::MessageType>(message.type));
      headers.push_back(std::move(message.header));
    } else if (message.sent) {
      message.sent({ErrorCode::kNotFound, "gone"});
    }
  }
  void disconnect(PeerId peer) override {
    if (on_its_way) on_its_way(peer);
    gone.insert(peer);
  }

  /// All messages of one kind, and forgets what was sent.
  template <typename Message>
  [[nodiscard]] std::vector<Message> take() {
    std::vector<Message> all;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i] == Message::kType) all.push_back(wire::decode<Message>(headers[i]));
    }
    sent.clear();
    headers.clear();
    return all;
  }

 private:
  std::string address_ = "played:1";
};

}  // namespace tributary::test
