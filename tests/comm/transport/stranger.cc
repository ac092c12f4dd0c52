#include "tests/comm/transport/stranger.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {
namespace {

sockaddr_in parse(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
  EXPECT_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr), 1);
  return to;
}

void set_timeout(int fd, int option, std::chrono::milliseconds timeout) {
  const timeval value{.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, option, &value, sizeof(value)), 0);
}

}  // namespace

Stranger::Stranger() : Stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}

Stranger::Stranger(const std::string& address, std::chrono::milliseconds patience) : Stranger() {
  connect(address, patience);
}

Stranger::Stranger(int fd) : fd_(fd) {
  for (const int option : {SO_SNDTIMEO, SO_RCVTIMEO}) set_timeout(fd_, option, kAmple);
}

void Stranger::connect(const std::string& address, std::chrono::milliseconds patience) const {
  const sockaddr_in to = parse(address);
  EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  set_timeout(fd_, SO_SNDTIMEO, patience);  // only now: it bounds connect(2), too
}

Stranger::~Stranger() {
  if (fd_ >= 0) close(fd_);
}

Stranger::Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

void Stranger::say(std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
}

void Stranger::end_saying() const {
  shutdown(fd_, SHUT_WR);
}

std::vector<std::byte> Stranger::hear(std::size_t bytes) const {
  std::vector<std::byte> heard(bytes);
  std::size_t total = 0;
  while (total < bytes) {
    const ssize_t got = recv(fd_, heard.data() + total, bytes - total, 0);
    if (got <= 0) break;
    total += static_cast<std::size_t>(got);
  }
  heard.resize(total);
  return heard;
}

std::size_t Stranger::hear() const {
  std::array<std::byte, 4096> bytes{};
  std::size_t total = 0;
  ssize_t got = 0;
  while ((got = recv(fd_, bytes.data(), bytes.size(), 0)) > 0) {
    total += static_cast<std::size_t>(got);
  }
  EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it is still open";
  return total;
}

std::vector<std::byte> Stranger::hear_some() const {
  std::vector<std::byte> heard(65536);
  const ssize_t got = recv(fd_, heard.data(), heard.size(), 0);
  heard.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return heard;
}

std::vector<std::vector<std::byte>> garbage(std::size_t bytes) {
  std::vector<std::byte> http = to_bytes("GET / HTTP/1.1\r\nHost: a\r\nCookie: ");
  http.resize(bytes, std::byte{'x'});
  std::vector<std::byte> lengths(bytes, std::byte{0});
  for (std::size_t i = 0; i < bytes; i += 8) lengths[i] = std::byte{16};
  return {test_bytes(bytes, bytes), std::vector<std::byte>(bytes, std::byte{0}),
          std::vector<std::byte>(bytes, std::byte{0xff}), std::move(http), std::move(lengths)};
}

std::vector<std::byte> bytes_that_abort_ucx() {
  std::vector<std::byte> bytes(13, std::byte{0});
  const std::uint64_t magic = 0xCAFEBABE12345678;
  std::memcpy(bytes.data(), &magic, sizeof(magic));
  std::memset(bytes.data() + 9, 0xff, 4);
  return bytes;
}

}  // namespace tributary::testing_support
