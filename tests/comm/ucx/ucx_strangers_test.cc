// Strangers at every port of a process: they learn nothing, block nobody, and break nothing.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/handshake.h"
#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/transport_endpoint.h"
#include "tests/comm/ucx/sockets_of_process.h"

namespace tributary::testing_support {
namespace {

/// A plain TCP connection.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : Stranger(socket(AF_INET, kType, 0)) {
    const ucx::SocketAddress to = ucx::parse_address(address);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&to.storage), to.size), 0);
  }
  explicit Stranger(int fd) : fd_(fd) {
    // A side that does not read is left alone after a while.
    const timeval patience{.tv_sec = 0, .tv_usec = 100'000};
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    const timeval ample{.tv_sec = kAmple.count(), .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &ample, sizeof(ample));
  }
  ~Stranger() { close(fd_); }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stranger& operator=(Stranger&&) = delete;

  void say(std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
  }
  /// How many bytes come before the other side closes.
  [[nodiscard]] std::size_t hear() const {
    std::array<std::byte, 4096> bytes{};
    std::size_t total = 0;
    ssize_t got = 0;
    while ((got = recv(fd_, bytes.data(), bytes.size(), 0)) > 0) {
      total += static_cast<std::size_t>(got);
    }
    EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "it is still open";
    return total;
  }

 private:
  static constexpr int kType = SOCK_STREAM | SOCK_CLOEXEC;
  int fd_;
};

/// Answers every message with "here".
class Server {
 public:
  explicit Server(TransportConfig config)
      : endpoint_(make_ucx_transport, config,
                  [](Endpoint& self, PeerId peer, std::uint16_t type,
                     std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                    self.send(peer, type, "here");
                    return true;
                  }) {}
  [[nodiscard]] const std::string& address() const { return endpoint_.address(); }
  [[nodiscard]] std::size_t disconnects() { return endpoint_.disconnects(); }

 private:
  Endpoint endpoint_;
};

class Client {
 public:
  explicit Client(const Server& server) : peer_(endpoint_.transport().connect(server.address())) {}
  void expect_answer() {
    endpoint_.send(peer_, 3, "who is there?");
    EXPECT_EQ(endpoint_.receive().header, to_bytes("here"));
    EXPECT_EQ(endpoint_.disconnects(), 0);
  }

 private:
  Endpoint endpoint_{make_ucx_transport, {}};
  PeerId peer_;
};

std::vector<std::vector<std::byte>> garbage(std::size_t bytes) {
  std::vector<std::byte> http = to_bytes("GET / HTTP/1.1\r\nHost: a\r\nCookie: ");
  http.resize(bytes, std::byte{'x'});
  // Lengths that look sound, too.
  std::vector<std::byte> lengths(bytes, std::byte{0});
  for (std::size_t i = 0; i < bytes; i += 8) lengths[i] = std::byte{16};
  return {test_bytes(bytes, bytes), std::vector<std::byte>(bytes, std::byte{0}),
          std::vector<std::byte>(bytes, std::byte{0xff}), std::move(http), std::move(lengths)};
}

}  // namespace

TEST(UcxStrangers, NothingListensBeyondTheLoopback) {
  ASSERT_TRUE(listening_addresses().empty());
  const Server server({.listen = "127.0.0.1:0"});
  const std::vector<std::string> addresses = listening_addresses();
  EXPECT_NE(std::ranges::find(addresses, server.address()), addresses.end());
  for (const std::string& address : addresses)
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
}

TEST(UcxStrangers, GarbageOnEveryPortHarmsNobody) {
  Server server({.listen = "127.0.0.1:0"});
  Client client(server);
  client.expect_answer();
  const std::vector<std::string> addresses = listening_addresses();
  EXPECT_GE(addresses.size(), 2);  // the front door, and UCX's own
  std::vector<Stranger> open;
  for (const std::size_t bytes : {1, 7, 8, 24, 100, 1000, 100'000, 1'000'000}) {
    for (const std::string& address : addresses) {
      SCOPED_TRACE(fmt::format("{} bytes at {}", bytes, address));
      for (const std::vector<std::byte>& what : garbage(bytes)) {
        Stranger stranger(address);
        stranger.say(what);
        if (bytes % 3 == 1) open.push_back(std::move(stranger));
        client.expect_answer();
      }
    }
  }
  Client(server).expect_answer();
  open.clear();
  client.expect_answer();
  EXPECT_EQ(server.disconnects(), 1);  // of the later client
}

TEST(UcxStrangers, TheDoorIsShutToWhoeverSaysTheWrongThing) {
  const Server server({.listen = "127.0.0.1:0"});
  const std::vector<std::byte> good = ucx::encode({.label = 7, .address = test_bytes(100, 1)});
  std::vector<std::vector<std::byte>> wrong = {to_bytes("G"), to_bytes("TRIBUCX2")};
  for (const std::size_t at : {8U, 10U, 12U, 16U, 24U, 123U}) {  // one of every field
    wrong.push_back(good);
    wrong.back()[at] ^= std::byte{4};
    if (at == 10) wrong.back().resize(200);
  }
  for (const std::vector<std::byte>& what : wrong) {
    const Stranger stranger(server.address());
    stranger.say(what);
    EXPECT_EQ(stranger.hear(), 0);
  }
  // Who introduces himself is answered, and has nothing more to say here.
  const Stranger stranger(server.address());
  stranger.say(good);
  stranger.say(to_bytes("x"));
  EXPECT_GT(stranger.hear(), 0);
  Client(server).expect_answer();
}

TEST(UcxStrangers, TheSilentAreSentAway) {
  const Server server({.listen = "127.0.0.1:0", .connect_timeout = std::chrono::milliseconds(200)});
  const std::vector<std::byte> good = ucx::encode({.label = 7, .address = test_bytes(100, 1)});
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{24}, good.size()}) {
    const Stranger stranger(server.address());
    stranger.say(std::span(good).first(bytes));
    EXPECT_EQ(stranger.hear() > 0, bytes == good.size());  // answered, but it never says hello
  }
  Client(server).expect_answer();
}

TEST(UcxStrangers, ManySilentOnesBlockNobody) {
  const Server server(
      {.listen = "127.0.0.1:0", .max_connections = 2, .connect_timeout = std::chrono::minutes(1)});
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(server.address());
  Client(server).expect_answer();
  EXPECT_EQ(strangers.front().hear(), 0);  // the oldest had to go
}

TEST(UcxStrangers, AServerOfAnotherKindIsNamed) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage address{};
  ucx::SocketAddress any = ucx::parse_address("127.0.0.1:0");
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listening, reinterpret_cast<const sockaddr*>(&any.storage), any.size), 0);
  ASSERT_EQ(listen(listening, 1), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  for (const bool speaks : {true, false}) {
    Endpoint client(make_ucx_transport, {});
    const PeerId peer = client.transport().connect(ucx::format_address(address));
    {
      const Stranger server(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
      if (speaks) server.say(to_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"));
      if (speaks) static_cast<void>(server.hear());
    }
    EXPECT_EQ(client.wait_disconnect(peer).code(),
              speaks ? ErrorCode::kMalformedInput : ErrorCode::kUnavailable);
  }
  close(listening);
}

}  // namespace tributary::testing_support
