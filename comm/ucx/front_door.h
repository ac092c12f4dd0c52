// Connections begin and end here: on plain TCP sockets two sides introduce themselves. A socket
// stays open as long as its connection.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/places.h"
#include "comm/transport/transport.h"
#include "comm/ucx/handshake_side.h"
#include "comm/ucx/ucx_address.h"

namespace tributary::ucx {

/// UCX's own listener is not used: version 1.13 aborts the process when a stranger sends it
/// unexpected bytes (an assertion in its tcp_sockcm_ep.c), so a port scan would kill a worker.
///
/// The messages are in ucx_handshake.h. The accepting side introduces itself if its owner wants to.
/// If it has no room, it refuses, then or later. Nothing else is sent. The system closes the socket
/// of a process that dies, so the other side notices at once.
class FrontDoor {
 public:
  using Clock = std::chrono::steady_clock;

  struct Event {
    PeerId peer = 0;
    bool accepted = false;
    std::string name;                // the other side's address
    std::uint64_t label = 0;         // our label for it, which the other side is told
    std::optional<Contact> contact;  // the other side's, which has proven itself
    Proven who;                      // with a contact
    Status gone;                     // why it is gone, without a contact; once, not after close()
  };

  /// Listens if `config` says so. Accepted peers take their ids from `next_id`. Throws
  /// kInvalidArgument, kIo.
  FrontDoor(const TransportConfig& config, std::vector<std::byte> worker_address,
            std::atomic<PeerId>& next_id, TransportHandler& handler);
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  void connect(PeerId peer, const SocketAddress& address, const tributary::Introduction& who);
  /// Sends our introduction to an accepted peer that has introduced itself.
  void answer(PeerId peer);
  /// Closes the connection of an accepted peer, and says why: kPoolFull, kPermissionDenied.
  void refuse(PeerId peer, ErrorCode reason);
  /// Whether the other side's socket is still open.
  [[nodiscard]] bool is_there(PeerId peer) const;
  void close(PeerId peer);
  void close_listener();

  /// Readable when there may be events.
  [[nodiscard]] int event_fd() const noexcept { return epoll_.get(); }
  [[nodiscard]] std::vector<Event> progress(Clock::time_point now);
  [[nodiscard]] Clock::time_point next_deadline() const;

 private:
  class Descriptor {
   public:
    explicit Descriptor(int fd = -1) noexcept : fd_(fd) {}
    ~Descriptor();
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
      std::swap(fd_, other.fd_);
      return *this;
    }
    [[nodiscard]] int get() const noexcept { return fd_; }

   private:
    int fd_;
  };
  struct Line {
    Descriptor socket;
    bool accepted = false;
    bool connected = false;
    HandshakeSide side;
    std::string name;
    std::vector<std::byte> received = {};
    Clock::time_point deadline = {};  // for its introduction, if it was accepted
  };

  void listen();
  void accept(Clock::time_point now);
  void watch(int fd, std::uint32_t events, std::uint64_t what);
  void set_up(PeerId peer, Line line);
  void handle(PeerId peer, Line& line);
  void say(PeerId peer, Line& line, std::span<const std::byte> bytes);
  [[nodiscard]] Contact our_contact() const;
  void receive(PeerId peer, Line& line);
  void gone(PeerId peer, const Line& line, const Status& reason);

  const TransportConfig& config_;
  const std::vector<std::byte> worker_address_;
  std::atomic<PeerId>& next_id_;
  TransportHandler& handler_;  // hears of limits
  Descriptor epoll_;
  Descriptor listening_;
  std::string address_;
  std::optional<Clock::time_point> resume_accepting_;
  std::unordered_map<PeerId, Line> lines_;
  Places strangers_;  // accepted, not introduced yet
  std::vector<Event> events_;
};

}  // namespace tributary::ucx
