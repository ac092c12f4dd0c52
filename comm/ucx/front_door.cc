#include "comm/ucx/front_door.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "comm/transport/keep_alive.h"

namespace tributary::ucx {
namespace {

/// Connections accepted and sockets handled before other work continues.
constexpr int kBatch = 64;
/// Pause in accepting when file descriptors run out. Clients wait in the system's backlog.
constexpr std::chrono::milliseconds kAcceptPause{100};
/// Value of `epoll_event.data` for the listener; ids of peers begin at 1.
constexpr std::uint64_t kListening = 0;

std::string error_text(int error) {
  return std::generic_category().message(error);
}

void set_option(int fd, int level, int option, int value) {
  // None of these fails on a TCP socket, and none of them is essential.
  static_cast<void>(setsockopt(fd, level, option, &value, sizeof(value)));
}

void set_options(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_keep_alive(fd);
}

std::uint64_t key_of(const sockaddr_storage& from) {
  const auto bytes = [](const auto& address) {
    return std::span(reinterpret_cast<const std::uint8_t*>(&address), sizeof(address));
  };
  return from.ss_family == AF_INET
             ? address_key(bytes(reinterpret_cast<const sockaddr_in&>(from).sin_addr))
             : address_key(bytes(reinterpret_cast<const sockaddr_in6&>(from).sin6_addr));
}

/// Random, so that nobody can guess it and send into the connection of another peer.
std::uint64_t random_label() {
  std::uint64_t label = 0;
  // Up to 256 bytes are always complete, and never block after the start of the system.
  while (getrandom(&label, sizeof(label), 0) != sizeof(label)) {
  }
  return label;
}

}  // namespace

FrontDoor::Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FrontDoor::FrontDoor(const TransportConfig& config, std::vector<std::byte> worker_address,
                     std::atomic<PeerId>& next_id, TransportHandler& handler)
    : config_(config),
      worker_address_(std::move(worker_address)),
      next_id_(next_id),
      handler_(handler),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      strangers_(places_for_strangers(config)) {
  if (epoll_.get() < 0) fail(ErrorCode::kIo, "epoll_create1: {}", error_text(errno));
  static_cast<void>(
      encode(ucx::Introduction{.contact = our_contact(), .mac = {}}));  // not too long
  if (!config.listen.empty()) listen();
}

FrontDoor::~FrontDoor() = default;

void FrontDoor::listen() {
  const SocketAddress address = parse_address(config_.listen);
  Descriptor fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (fd.get() >= 0) set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (fd.get() < 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    fail(ErrorCode::kIo, "listen on '{}': {}", config_.listen, error_text(errno));
  }
  listening_ = std::move(fd);
  watch(listening_.get(), EPOLLIN, kListening);
  address_ = format_address(bound);
}

/// Adds the socket to epoll, or changes its events.
void FrontDoor::watch(int fd, std::uint32_t events, std::uint64_t what) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) == 0) return;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    fail(ErrorCode::kIo, "epoll_ctl: {}", error_text(errno));
  }
}

Contact FrontDoor::our_contact() const {
  return {.label = random_label(), .address = worker_address_};
}

void FrontDoor::set_up(PeerId peer, Line line) {
  set_options(line.socket.get());
  const bool connecting = !line.accepted;
  const int fd = line.socket.get();
  Line& kept = lines_.insert_or_assign(peer, std::move(line)).first->second;
  try {
    watch(fd, connecting ? EPOLLOUT : EPOLLIN, peer);
  } catch (const Error& error) {
    gone(peer, kept, {error.code(), error.what()});
  }
}

void FrontDoor::connect(PeerId peer, const SocketAddress& address,
                        const tributary::Introduction& who) {
  Line line{.socket = Descriptor(
                socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)),
            .side = HandshakeSide(who, our_contact()),
            .name = format_address(address.storage)};
  const int fd = line.socket.get();
  if (fd >= 0 &&
      (::connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0 ||
       errno == EINPROGRESS)) {
    set_up(peer, std::move(line));
  } else {
    gone(peer, line, {ErrorCode::kUnavailable, error_text(errno)});
  }
}

void FrontDoor::accept(Clock::time_point now) {
  for (int i = 0; i < kBatch; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    Descriptor fd(accept4(listening_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        watch(listening_.get(), 0, kListening);
        resume_accepting_ = now + kAcceptPause;
      }
      return;
    }
    const PeerId peer = next_id_.fetch_add(1);
    if (const auto gone = strangers_.take(peer, key_of(from)).gone) {
      handler_.on_limit(TransportLimit::kStrangers,
                        {ErrorCode::kUnavailable, "a stranger was closed to make room"});
      refuse(*gone, ErrorCode::kPoolFull);
    }
    set_up(peer, {.socket = std::move(fd),
                  .accepted = true,
                  .connected = true,
                  .side = HandshakeSide(config_.secret_of, our_contact()),
                  .name = format_address(from),
                  .deadline = now + config_.connect_timeout});
  }
}

void FrontDoor::answer(PeerId peer) {
  const auto line = lines_.find(peer);
  if (line != lines_.end()) say(peer, line->second, line->second.side.answer());
}

void FrontDoor::refuse(PeerId peer, ErrorCode reason) {
  if (const auto line = lines_.find(peer); line != lines_.end()) {
    const std::vector<std::byte> bytes = encode(Refusal{.reason = reason});
    // A side that does not read loses nothing but the reason.
    static_cast<void>(
        ::send(line->second.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }
  close(peer);
}

void FrontDoor::say(PeerId peer, Line& line, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  // Among the first bytes on a new socket, fewer than any socket buffer holds: they are sent at
  // once.
  const ssize_t sent = ::send(line.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(bytes.size())) {
    gone(peer, line, {ErrorCode::kUnavailable, sent < 0 ? error_text(errno) : "a full socket"});
  }
}

void FrontDoor::receive(PeerId peer, Line& line) {
  // Reads no more than one message. What follows the introduction may be a refusal.
  std::size_t wanted = message_bytes(line.received);
  while (true) {
    const std::size_t begin = line.received.size();
    line.received.resize(wanted);
    const ssize_t got =
        recv(line.socket.get(), line.received.data() + begin, line.received.size() - begin, 0);
    const int error = errno;
    line.received.resize(begin + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got < 0 && (error == EAGAIN || error == EINTR)) return;
    if (got < 0) return gone(peer, line, {ErrorCode::kUnavailable, error_text(error)});
    if (got == 0) return gone(peer, line, {ErrorCode::kUnavailable, "closed by the other side"});
    if (line.side.done() && line.accepted) {
      fail(ErrorCode::kMalformedInput, "bytes after the introduction");
    }
    wanted = message_bytes(line.received);
    if (line.received.size() == wanted) break;
  }
  HandshakeSide::Step step = line.side.take(std::exchange(line.received, {}));
  if (step.contact) {
    strangers_.leave(peer);
    events_.push_back({.peer = peer,
                       .accepted = line.accepted,
                       .name = line.name,
                       .label = line.side.ours().label,
                       .contact = std::move(step.contact),
                       .who = line.side.proven(),
                       .gone = {}});
  }
  say(peer, line, step.reply);
}

void FrontDoor::handle(PeerId peer, Line& line) {
  try {
    if (line.connected) return receive(peer, line);
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(line.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) return gone(peer, line, {ErrorCode::kUnavailable, error_text(error)});
    line.connected = true;
    watch(line.socket.get(), EPOLLIN, peer);
    say(peer, line, line.side.opening());
  } catch (const Error& error) {
    if (line.accepted && error.code() == ErrorCode::kPermissionDenied) {
      return refuse(peer, error.code());
    }
    gone(peer, line, {error.code(), error.what()});
  }
}

/// Destroys the line.
void FrontDoor::gone(PeerId peer, const Line& line, const Status& reason) {
  // Strangers were never reported.
  if (!line.accepted || line.side.done()) {
    events_.push_back(
        {.peer = peer,
         .accepted = line.accepted,
         .name = line.name,
         .label = line.side.ours().label,
         .contact = std::nullopt,
         .who = {},
         .gone = {reason.code(), fmt::format("connection {} {}: {}", line.accepted ? "from" : "to",
                                             line.name, reason.message())}});
  }
  close(peer);
}

bool FrontDoor::is_there(PeerId peer) const {
  const auto line = lines_.find(peer);
  std::byte byte{};
  return line != lines_.end() &&
         recv(line->second.socket.get(), &byte, sizeof(byte), MSG_PEEK | MSG_DONTWAIT) < 0 &&
         errno == EAGAIN;
}

void FrontDoor::close(PeerId peer) {
  strangers_.leave(peer);
  lines_.erase(peer);
}

void FrontDoor::close_listener() {
  listening_ = Descriptor();
  resume_accepting_.reset();
  while (const auto peer = strangers_.oldest()) close(*peer);
}

std::vector<FrontDoor::Event> FrontDoor::progress(Clock::time_point now) {
  if (resume_accepting_ && *resume_accepting_ <= now) {
    resume_accepting_.reset();
    watch(listening_.get(), EPOLLIN, kListening);
  }
  for (auto peer = strangers_.oldest(); peer && lines_.at(*peer).deadline <= now;) {
    close(*peer);
    peer = strangers_.oldest();
  }
  std::array<epoll_event, kBatch> ready{};
  const int count = epoll_wait(epoll_.get(), ready.data(), kBatch, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t what = ready.at(static_cast<std::size_t>(i)).data.u64;
    if (what == kListening) {
      accept(now);
    } else if (const auto line = lines_.find(what); line != lines_.end()) {
      handle(what, line->second);
    }
  }
  return std::exchange(events_, {});
}

FrontDoor::Clock::time_point FrontDoor::next_deadline() const {
  auto deadline = Clock::time_point::max();
  if (resume_accepting_) deadline = *resume_accepting_;
  if (const auto peer = strangers_.oldest()) {
    deadline = std::min(deadline, lines_.at(*peer).deadline);
  }
  return deadline;
}

}  // namespace tributary::ucx
