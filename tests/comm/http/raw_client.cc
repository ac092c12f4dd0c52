#include "tests/comm/http/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <stdexcept>

#include "comm/http/url.h"

namespace tributary {
namespace {

constexpr int kPatienceMs = 20'000;

/// The bytes that arrived, none at the end. Throws if nothing arrives for too long.
std::string read_some(int fd) {
  pollfd entry{fd, POLLIN, 0};
  if (poll(&entry, 1, kPatienceMs) <= 0) throw std::runtime_error("the server sends nothing");
  std::array<char, 65536> bytes;
  const ssize_t count = recv(fd, bytes.data(), bytes.size(), 0);
  return count <= 0 ? "" : std::string(bytes.data(), static_cast<std::size_t>(count));
}

}  // namespace

RawClient::RawClient(const std::string& address, int receive_buffer_bytes) {
  const HostPort parts = parse_host_port(address);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(parts.port));
  inet_pton(AF_INET, parts.host.c_str(), &to.sin_addr);
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) {
    const std::string why = std::strerror(errno);
    ::close(fd_);
    throw std::runtime_error("cannot connect to " + address + ": " + why);
  }
}

RawClient::~RawClient() {
  ::close(fd_);
}

bool RawClient::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RawClient::readable() const {
  pollfd entry{fd_, POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

std::string RawClient::read_all() const {
  std::string text;
  for (std::string more = read_some(fd_); !more.empty(); more = read_some(fd_)) text += more;
  return text;
}

std::string RawClient::read_until(std::string_view mark, int count) const {
  std::string text;
  std::size_t from = 0;
  while (count > 0) {
    const std::size_t found = text.find(mark, from);
    if (found != std::string::npos) {
      from = found + mark.size();
      --count;
      continue;
    }
    const std::string more = read_some(fd_);
    if (more.empty()) break;
    text += more;
  }
  return text;
}

}  // namespace tributary
