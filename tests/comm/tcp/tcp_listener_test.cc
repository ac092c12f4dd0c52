// The listening socket when it fails.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <future>
#include <string>

#include "comm/tcp/tcp_transport.h"
#include "tests/comm/transport/silent_handler.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {
namespace {

class Watching final : public SilentHandler {
 public:
  void on_listener_failed(const Status& reason) override { failed.set_value(reason); }
  std::promise<Status> failed;
};

/// Breaks the socket that listens at "127.0.0.1:PORT": SHUT_RDWR makes its accept fail.
void break_listening_socket(const std::string& address) {
  const auto port = static_cast<in_port_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    int listening = 0;
    socklen_t size = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
      continue;
    }
    sockaddr_in at{};
    size = sizeof(at);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) == 0 &&
        at.sin_port == htons(port)) {
      EXPECT_EQ(shutdown(fd, SHUT_RDWR), 0);
    }
  }
}

}  // namespace

TEST(TcpListener, ItsEndIsTold) {
  Watching handler;
  const auto server = make_tcp_transport({.listen = "127.0.0.1:0"}, handler);
  break_listening_socket(server->address());
  auto failed = handler.failed.get_future();
  ASSERT_EQ(failed.wait_for(kAmple), std::future_status::ready);
  const Status reason = failed.get();
  EXPECT_EQ(reason.code(), ErrorCode::kIo);
  EXPECT_NE(reason.message().find(server->address()), std::string::npos) << reason.message();
}

// The handler's default.
TEST(TcpListenerDeathTest, ItsEndIsThatOfTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Endpoint server(make_tcp_transport, {.listen = "127.0.0.1:0"});
        break_listening_socket(server.address());
        static_cast<void>(server.wait_disconnects(1));
      },
      "has failed");
}

}  // namespace tributary::testing_support
