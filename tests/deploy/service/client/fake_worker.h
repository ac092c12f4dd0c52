// A worker that sends what a test tells it, over comm/tcp: for behaviour that real workers show
// only when something goes wrong.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/transport.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary::test {

class FakeWorker final : private TransportHandler {
 public:
  /// Lets in whoever shows token_of() a sequence.
  FakeWorker();
  /// The same over another transport than comm/tcp.
  FakeWorker(const MakeTransport& make_transport, const std::string& listen);
  ~FakeWorker() override;
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  [[nodiscard]] const std::string& address() const { return transport_->address(); }

  /// The answers. By default everything succeeds: rows are taken, a round's outputs are the numbers
  /// of its tokens, controls return what they were asked. Called on the transport's thread; no
  /// value means no answer. Set these before the client's first message.
  struct Hello : wire::Hello {
    std::uint64_t sequence_id = 0;  // that opened the connection
  };
  std::function<std::optional<wire::Welcome>(const Hello&)> on_hello;
  std::function<std::optional<wire::RowsReply>(const wire::Rows&)> on_rows;
  struct RoundAnswer {
    wire::LayerReply reply;  // request and crc32c are filled in where they are 0
    std::vector<std::byte> payload;
  };
  std::function<std::optional<RoundAnswer>(const wire::LayerRequest&, std::span<const std::byte>)>
      on_round;
  std::function<std::optional<wire::ControlReply>(const wire::Control&)> on_control;
  /// Whether the judgement of proofs is told now; otherwise judge() does it.
  std::function<bool(const wire::Prove&)> on_prove;
  /// Proofs may be wrong: whatever asks for what they name is refused, as by a real worker.
  bool forgeries = false;

  /// Tells the judgements that were not told yet.
  void judge();
  /// Sends to the client that sent the latest message.
  void send(const RoundAnswer& answer);
  void send_raw(std::uint16_t type, std::vector<std::byte> header);
  void disconnect();

  struct Received {
    std::vector<Hello> hellos;
    std::vector<wire::Prove> proofs;
    int wrong_proofs = 0;
    std::vector<wire::Rows> rows;
    std::vector<std::vector<std::byte>> row_payloads;
    std::vector<wire::LayerRequest> rounds;
    /// Without the questions of the client's watch, which a stall of half a second brings: they
    /// are renewals without an epoch.
    std::vector<wire::Control> controls;
    int ends = 0;  // of connections, by the client
  };
  /// Waits until `enough` holds; fails the test after some seconds.
  Received wait_until(const std::function<bool(const Received&)>& enough);
  [[nodiscard]] Received received();

 private:
  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  [[nodiscard]] wire::ProveReply judgement_of(PeerId peer, const wire::Prove& proofs);
  void tell_judgements();  // with the mutex held
  [[nodiscard]] bool allowed(std::uint64_t id);
  void answer_rows(const wire::Rows& rows, std::span<const std::byte> payload);
  void answer_round(const wire::LayerRequest& round, std::span<const std::byte> payload);
  void answer_control(const wire::Control& control);
  void reply(wire::MessageType type, std::vector<std::byte> header,
             std::shared_ptr<std::vector<std::byte>> payload = nullptr);

  std::mutex mutex_;
  std::condition_variable changed_;
  Received received_;
  std::atomic<PeerId> client_ = 0;
  std::map<PeerId, Proven> opened_;
  std::map<PeerId, std::set<std::uint64_t>> proven_;
  std::vector<wire::ProveReply> judgements_;  // for client_
  std::unique_ptr<Transport> owner_;
  Transport* const transport_;  // also while the owner ends: its callbacks use it
};

/// Small enough to follow by hand: 2 heads of 4 + 2, rows and queries f32, 3 layers.
[[nodiscard]] PoolShape small_shape();
inline constexpr std::size_t kSmallRowBytes = 6 * sizeof(float);
inline constexpr std::size_t kSmallInput = (2 * 6 + 6) * sizeof(float);
inline constexpr std::size_t kSmallOutput = 2 * 5;  // floats of a token's attend

/// The token of a small sequence.
[[nodiscard]] wire::Token token_of(std::uint64_t id);

/// A sequence of `workers`, the prompt in extents of `extent` rows on each in turn.
[[nodiscard]] SequenceHandle small_sequence(std::uint64_t id,
                                            std::span<const std::string> addresses,
                                            std::int64_t prompt_tokens, std::int64_t extent);

}  // namespace tributary::test
