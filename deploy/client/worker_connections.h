// A client's connections to workers, by address: greetings, and requests that wait for their
// replies with a deadline. Not for use outside deploy/client.
#pragma once

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
#include <unordered_map>
#include <variant>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/messages.h"
#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

using MakeTransport =
    std::function<std::unique_ptr<Transport>(const TransportConfig&, TransportHandler&)>;

/// Bytes that nobody cleared first.
struct OwnedBytes {
  OwnedBytes() = default;
  explicit OwnedBytes(std::size_t bytes)
      : data(std::make_unique_for_overwrite<std::byte[]>(bytes)), size(bytes) {}
  [[nodiscard]] std::span<std::byte> span() const noexcept { return {data.get(), size}; }

  std::unique_ptr<std::byte[]> data;  // NOLINT(modernize-avoid-c-arrays)
  std::size_t size = 0;
};

/// What a worker answered to one request.
struct WorkerReply {
  std::variant<std::monostate, wire::RowsReply, wire::RoundReply, wire::ControlReply> message;
  OwnedBytes payload;  // checksum verified
};

class WorkerConnections final : private TransportHandler {
 public:
  WorkerConnections(const TransportConfig& config, const MakeTransport& make_transport,
                    std::size_t max_in_flight_bytes);
  ~WorkerConnections() override;
  WorkerConnections(const WorkerConnections&) = delete;
  WorkerConnections& operator=(const WorkerConnections&) = delete;

  struct Greeting {
    std::string address;
    wire::Shape shape;
    std::uint64_t sequence_id = 0;
    wire::Token token{};
  };
  /// Connects to those that it is not connected to, all at once, and waits until they have welcomed
  /// us. Throws what they refused with, kPoolLost for a worker that is not there,
  /// kDeadlineExceeded.
  void connect(std::span<const Greeting> greetings, Deadline deadline);

  /// The requests of one call, from one thread. Destroyed, it forgets what was not answered:
  /// replies that come later land in memory of their own and are dropped.
  class Call {
   public:
    Call(WorkerConnections& connections, Deadline deadline);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    /// `payload` stays valid until the call is destroyed, or as long as `owner` lives.
    /// `max_reply_bytes` bounds the payload that comes back. `encode(request number)` makes the
    /// header. Returns the request's index. An address that is not connected any more: the request
    /// ends with kPoolLost.
    std::size_t send(const std::string& address, wire::MessageType type,
                     const std::function<std::vector<std::byte>(std::uint64_t)>& encode,
                     std::span<const std::byte> payload = {},
                     std::shared_ptr<const void> owner = nullptr, std::size_t max_reply_bytes = 0);
    /// Waits until so many of the bytes in flight of all calls are left that `bytes` more may go;
    /// they are given back when the request that is sent next has ended. False: the deadline.
    [[nodiscard]] bool reserve(std::size_t bytes);

    /// Waits for one reply or for any failure of this request; never throws. A deadline that passes
    /// is kDeadlineExceeded.
    Status wait(std::size_t index);
    /// After wait() returned ok.
    [[nodiscard]] WorkerReply& reply(std::size_t index);
    /// Whether some request of the call has failed, or was refused, so far.
    [[nodiscard]] bool failed() const;
    /// Waits until payloads that live in the caller's memory are no longer read; connections that
    /// hold on to them past the deadline are cut.
    void release_payloads();

   private:
    struct Shared;
    struct Pending;
    friend class WorkerConnections;

    WorkerConnections& connections_;
    Deadline deadline_;
    std::shared_ptr<Shared> shared_;
    std::vector<std::shared_ptr<Pending>> requests_;
    std::size_t reserved_ = 0;
  };

 private:
  struct Connection;

  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;

  std::shared_ptr<Connection> open(const Greeting& greeting);
  void welcome(PeerId peer, std::span<const std::byte> header);
  std::optional<Landing> on_reply(PeerId peer, wire::MessageType type,
                                  std::span<const std::byte> header, std::size_t payload_bytes);
  /// With the mutex held: ends a request, once.
  void finish(std::uint64_t request, Status status, WorkerReply reply);
  /// Ends the connection and all that waits on it.
  void drop(PeerId peer, const Status& reason);

  std::mutex connect_mutex_;  // one connection to an address, though connect() is outside mutex_
  mutable std::mutex mutex_;
  std::condition_variable greeted_;
  std::condition_variable room_;                                    // in_flight_bytes_ has shrunk
  std::map<std::string, std::shared_ptr<Connection>> connections_;  // greeting or ready
  std::unordered_map<PeerId, std::shared_ptr<Connection>> peers_;
  std::unordered_map<PeerId, Status> early_;  // gone before connect() had returned
  std::unordered_map<std::uint64_t, std::shared_ptr<Call::Pending>> pending_;
  std::uint64_t next_request_ = 1;
  std::size_t in_flight_bytes_ = 0;
  const std::size_t max_in_flight_bytes_;
  Transport* transport_ = nullptr;    // also while the owner below destroys it: callbacks use it
  std::unique_ptr<Transport> owner_;  // last: its callbacks use the rest
};

}  // namespace tributary
