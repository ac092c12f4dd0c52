#include "tests/comm/http/raw_server.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace tributary {
namespace {

constexpr int kClientPatienceMs = 20'000;

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, kClientPatienceMs) > 0;
}

void serve_one(int listener, const std::string& answer) {
  if (!readable(listener)) return;
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  std::array<char, 65536> bytes;
  if (fd >= 0 && readable(fd) && recv(fd, bytes.data(), bytes.size(), 0) > 0) {
    (void)!send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  close(fd);
}

}  // namespace

RawServer::RawServer(std::string answer) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* address = reinterpret_cast<sockaddr*>(&at);
  if (bind(fd_, address, size) != 0 || listen(fd_, 4) != 0 ||
      getsockname(fd_, address, &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  address_ = fmt::format("127.0.0.1:{}", ntohs(at.sin_port));
  thread_ = std::thread([fd = fd_, text = std::move(answer)] { serve_one(fd, text); });
}

RawServer::~RawServer() {
  shutdown(fd_, SHUT_RDWR);  // wakes an accept that nobody has connected to
  thread_.join();
  close(fd_);
}

}  // namespace tributary
