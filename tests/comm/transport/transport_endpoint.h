// A transport with a handler that records messages, for tests that wait for events.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace tributary::testing_support {

/// Far beyond what anything here takes, far below a test's time limit.
inline constexpr std::chrono::seconds kAmple{20};

/// Reproducible bytes that differ with `seed` and position.
[[nodiscard]] std::vector<std::byte> test_bytes(std::size_t bytes, std::uint64_t seed);
[[nodiscard]] std::vector<std::byte> to_bytes(const std::string& text);

/// Counts calls of a `sent` or `done`, and keeps the first status.
class Completion {
 public:
  [[nodiscard]] std::function<void(const Status&)> callback();
  /// The status; kInternal if there is none in time.
  [[nodiscard]] Status wait() const;
  [[nodiscard]] int calls() const;
  /// Whether it is called `n` times, in time, and always with ok.
  [[nodiscard]] bool wait_all_ok(int n) const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable called;
    int calls = 0;
    int failures = 0;
    Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

struct Received {
  PeerId peer = 0;
  std::uint16_t type = 0;
  std::vector<std::byte> header;
  std::vector<std::byte> payload;    // what the landing's pieces hold, in their order
  std::vector<std::byte> inspected;  // what Landing::inspect has been shown before `done`
  Status status;                     // of the payload
};

class Endpoint final : public TransportHandler {
 public:
  using Make = std::function<std::unique_ptr<Transport>(const TransportConfig&, TransportHandler&)>;
  /// Sees each message first. Returns true if it has answered the message itself, which is then not
  /// recorded.
  using Hook = std::function<bool(Endpoint&, PeerId, std::uint16_t type,
                                  std::span<const std::byte> header, std::size_t payload_bytes)>;

  Endpoint(const Make& make, const TransportConfig& config, Hook hook = {});
  ~Endpoint() override;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] Transport& transport() { return *transport_; }
  [[nodiscard]] const std::string& address() const { return transport_->address(); }
  /// Ends the transport before the endpoint.
  void stop() { transport_.reset(); }

  /// Payloads land in pieces of these sizes (the last takes the rest) with gaps between.
  void set_piece_bytes(std::size_t bytes);
  void set_drop(bool drop);

  void send(PeerId peer, std::uint16_t type, const std::string& header,
            std::span<const std::byte> payload = {}, std::function<void(const Status&)> sent = {});

  /// The next message whose payload has arrived or failed. Fails the test if there is none in time.
  [[nodiscard]] Received receive();
  /// Waits until `n` messages have arrived since the start (with or without receive()).
  [[nodiscard]] bool wait_for_messages(std::size_t n);
  /// Who was proven on a connection, once it is open. Fails the test if that is not in time.
  [[nodiscard]] Proven wait_open(PeerId peer);
  /// The reason of on_disconnect; kInternal if it is not called in time.
  [[nodiscard]] Status wait_disconnect(PeerId peer);
  /// Waits for `n` disconnects, of any peers.
  [[nodiscard]] bool wait_disconnects(std::size_t n);
  [[nodiscard]] std::size_t disconnects();
  [[nodiscard]] std::size_t opens();
  [[nodiscard]] std::size_t landings_touched_in_gaps();

 private:
  struct Slot;

  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  void finish(Slot& slot, const Status& status);

  const Hook hook_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t piece_bytes_ = 0;
  bool drop_ = false;
  std::list<Slot> slots_;  // payloads in transit
  std::list<Received> received_;
  std::map<PeerId, Proven> opened_;
  std::size_t messages_ = 0;
  std::size_t touched_gaps_ = 0;
  std::multimap<PeerId, Status> disconnects_;
  std::mutex ready_mutex_;  // on_message may be called before the constructor has set transport_
  std::unique_ptr<Transport> transport_;
};

}  // namespace tributary::testing_support
