// A data-plane client that sends whatever a test wants, well-formed or not.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/transport.h"
#include "deploy/service/protocol/admission.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

class RawClient final : private TransportHandler {
 public:
  struct Message {
    wire::MessageType type{};
    std::vector<std::byte> header;
    std::vector<std::byte> payload;
  };

  /// To the first worker, with the sequence's token.
  explicit RawClient(const SequenceHandle& admitted);
  ~RawClient() override;

  void send(wire::MessageType type, std::vector<std::byte> header,
            std::vector<std::byte> payload = {});
  /// The next message of the worker. Throws if it disconnects or sends nothing in time.
  [[nodiscard]] Message receive();
  /// Waits for the end of the connection; false when it is still there after some seconds.
  [[nodiscard]] bool disconnected();

  /// Introduces itself with the sequence's shape and token.
  [[nodiscard]] wire::Welcome hello(const SequenceHandle& admitted);
  /// Sends rows and returns what the worker answered. `rows.crc32c` and the rest are the caller's.
  [[nodiscard]] wire::Outcome push(const wire::Rows& rows, std::vector<std::byte> payload);
  [[nodiscard]] wire::LayerReply round(const wire::LayerRequest& round,
                                       std::vector<std::byte> payload,
                                       std::vector<std::byte>* output = nullptr);
  [[nodiscard]] wire::ControlReply control(const wire::Control& control);

 private:
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> received_;
  std::optional<Status> gone_;
  std::unique_ptr<Transport> transport_;  // ends before what its handlers use
  PeerId peer_ = 0;
};

}  // namespace tributary
