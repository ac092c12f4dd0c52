// A worker that says what a test tells it to, over a LocalNetwork: for what real workers do only
// when something goes wrong.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
#include "comm/wire/messages.h"
#include "deploy/client/tier_client.h"

namespace tributary::test {

class FakeWorker final : private TransportHandler {
 public:
  explicit FakeWorker(const std::shared_ptr<LocalNetwork>& network);
  ~FakeWorker() override;

  [[nodiscard]] const std::string& address() const { return transport_->address(); }

  /// What comes back; by default everything is well: rows are taken, a round's outputs are the
  /// numbers of its tokens, controls say what they were asked. Called on the transport's thread; no
  /// value: no answer. Set before the client's first message.
  std::function<wire::Welcome(const wire::Hello&)> on_hello;
  std::function<std::optional<wire::RowsReply>(const wire::Rows&)> on_rows;
  struct RoundAnswer {
    wire::RoundReply reply;  // request and crc32c are filled in where they are 0
    std::vector<std::byte> payload;
  };
  std::function<std::optional<RoundAnswer>(const wire::Round&, std::span<const std::byte>)>
      on_round;
  std::function<std::optional<wire::ControlReply>(const wire::Control&)> on_control;

  /// To the last client that spoke.
  void send(const RoundAnswer& answer);
  void send_raw(std::uint16_t type, std::vector<std::byte> header);
  void disconnect();

  struct Received {
    std::vector<wire::Hello> hellos;
    std::vector<wire::Rows> rows;
    std::vector<std::vector<std::byte>> row_payloads;
    std::vector<wire::Round> rounds;
    std::vector<wire::Control> controls;
  };
  /// Waits until `enough` holds; fails the test after some seconds.
  Received wait_until(const std::function<bool(const Received&)>& enough);
  [[nodiscard]] Received received();

 private:
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  void answer_rows(const wire::Rows& rows, std::span<const std::byte> payload);
  void answer_round(const wire::Round& round, std::span<const std::byte> payload);
  void answer_control(const wire::Control& control);
  void reply(wire::MessageType type, std::vector<std::byte> header,
             std::shared_ptr<std::vector<std::byte>> payload = nullptr);

  std::mutex mutex_;
  std::condition_variable changed_;
  Received received_;
  PeerId client_ = 0;
  std::unique_ptr<Transport> transport_;
};

/// Small enough to see through: 2 heads of 4 + 2, rows and queries f32, 3 layers.
[[nodiscard]] wire::Shape small_shape();
inline constexpr std::size_t kSmallRowBytes = 6 * sizeof(float);
inline constexpr std::size_t kSmallInput = (2 * 6 + 6) * sizeof(float);
inline constexpr std::size_t kSmallOutput = 2 * 5;  // floats of a token's attend

/// A sequence of `workers`, the prompt in extents of `extent` rows on each in turn.
[[nodiscard]] SequenceHandle small_sequence(std::uint64_t id,
                                            std::span<const std::string> addresses,
                                            std::int64_t prompt_tokens, std::int64_t extent);

}  // namespace tributary::test
