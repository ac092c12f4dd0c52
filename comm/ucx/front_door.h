// Where connections begin and end: plain TCP sockets on which two sides introduce themselves, and
// which stay open for as long as they want to be connected.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/ucx/handshake.h"
#include "comm/ucx/ucx_address.h"

namespace tributary::ucx {

/// Why not UCX's own listener: version 1.13 ends the process when a stranger sends it bytes that it
/// does not expect (an assertion in its tcp_sockcm_ep.c), so a port scan would end a worker.
///
/// The connecting side introduces itself; the accepting side answers the same, if its owner wants
/// to; after that nothing is sent. The system closes the socket of a process that dies: the other
/// side knows at once.
class FrontDoor {
 public:
  using Clock = std::chrono::steady_clock;

  struct Event {
    PeerId peer = 0;
    bool accepted = false;
    std::string name;         // the other side's address
    std::uint64_t label = 0;  // ours, which it has been told or will be
    std::optional<Introduction> introduction;
    Status gone;  // without an introduction; reported once, not after close()
  };

  /// Listens if `config` says so. Ids of peers that come are taken from `next_id`. Throws
  /// kInvalidArgument, kIo.
  FrontDoor(const TransportConfig& config, std::vector<std::byte> worker_address,
            std::atomic<PeerId>& next_id);
  ~FrontDoor();
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return address_; }

  void connect(PeerId peer, const SocketAddress& address);
  /// Introduces us to a peer that has come and introduced itself.
  void answer(PeerId peer);
  /// Whether the other side still holds its end at this moment.
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
    bool introduced = false;  // the other side has been
    std::string name;
    std::uint64_t label = 0;
    std::vector<std::byte> received;
    Clock::time_point deadline;  // of its introduction, when it has come to us
  };

  void listen();
  void accept(Clock::time_point now);
  void watch(int fd, std::uint32_t events, std::uint64_t what);
  void set_up(PeerId peer, Line line);
  void handle(PeerId peer, Line& line);
  void introduce(PeerId peer, Line& line);
  void receive(PeerId peer, Line& line);
  void gone(PeerId peer, const Line& line, const Status& reason);

  const TransportConfig& config_;
  const std::vector<std::byte> worker_address_;
  std::atomic<PeerId>& next_id_;
  Descriptor epoll_;
  Descriptor listening_;
  std::string address_;
  std::optional<Clock::time_point> resume_accepting_;
  std::unordered_map<PeerId, Line> lines_;
  std::set<PeerId> strangers_;  // accepted and not introduced; by age
  std::vector<Event> events_;
};

}  // namespace tributary::ucx
