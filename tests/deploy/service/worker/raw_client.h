// A client of the data plane that sends messages one by one, even wrong ones.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/transport/transport.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/pool_messages.h"
#include "tests/deploy/service/worker/service_pool.h"

namespace tributary::test {

class RawClient final : public TransportHandler {
 public:
  RawClient();
  ~RawClient() override;

  [[nodiscard]] PeerId connect(const std::string& address, const SequenceInfo& as);
  [[nodiscard]] wire::Welcome hello(PeerId peer, const wire::Hello& hello);
  /// connect and hello in one; fails the test unless it is welcome.
  [[nodiscard]] PeerId enter(const std::string& address, const PoolShape& shape,
                             const SequenceInfo& sequence);
  /// Proves that the sequence is ours too; with a wrong token it is refused later, without a word.
  void prove(PeerId peer, const SequenceInfo& sequence);
  void disconnect(PeerId peer) { transport_->disconnect(peer); }
  void send(PeerId peer, wire::MessageType type, std::vector<std::byte> header,
            std::vector<std::byte> payload = {});

  /// The request number and the checksum (unless it is given) are filled in.
  [[nodiscard]] std::uint64_t send_rows(PeerId peer, wire::Rows rows,
                                        std::vector<std::byte> payload,
                                        std::optional<std::uint32_t> crc = {});
  [[nodiscard]] wire::RowsReply wait_rows(std::uint64_t request);
  [[nodiscard]] std::uint64_t send_round(PeerId peer, wire::LayerRequest round,
                                         std::vector<std::byte> payload,
                                         std::optional<std::uint32_t> crc = {});
  struct RoundResult {
    wire::LayerReply reply;
    std::vector<std::byte> output;
    [[nodiscard]] std::vector<float> floats() const;
  };
  [[nodiscard]] RoundResult wait_round(std::uint64_t request);
  struct PullResult {
    wire::PullReply reply;
    std::vector<std::byte> rows;
  };
  /// The request number is filled in.
  [[nodiscard]] std::uint64_t send_pull(PeerId peer, wire::Pull pull);
  [[nodiscard]] PullResult wait_pull(std::uint64_t request);
  [[nodiscard]] wire::ControlReply control(PeerId peer, std::vector<wire::ControlItem> items);
  [[nodiscard]] Status wait_disconnect(PeerId peer);

  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;

 private:
  /// Lands a payload in `result`, which has its reply, and files it under the request.
  template <typename Result>
  Landing land(std::shared_ptr<Result> result, std::vector<std::byte> Result::*payload,
               std::map<std::uint64_t, Result>& results);
  template <typename Value, typename Key>
  Value wait(std::map<Key, Value>& values, Key key, const char* what);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<PeerId, Session> sessions_;
  std::map<PeerId, wire::Welcome> welcomes_;
  std::map<PeerId, Status> disconnects_;
  std::map<std::uint64_t, wire::RowsReply> rows_;
  std::map<std::uint64_t, RoundResult> rounds_;
  std::map<std::uint64_t, PullResult> pulls_;
  std::map<std::uint64_t, wire::ControlReply> controls_;
  std::uint64_t last_request_ = 0;
  std::unique_ptr<Transport> transport_;
};

}  // namespace tributary::test
