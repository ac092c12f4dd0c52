#include "comm/transport/keep_alive.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace tributary {
namespace {

// Linux sends no probes while sent bytes are unacknowledged, and sends those again for a quarter of
// an hour.
TEST(KeepAlive, UnacknowledgedBytesHaveTheTimeOfAnIdleConnection) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(socket, 0);
  set_keep_alive(socket);
  const auto option = [socket](int which) {
    int value = -1;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(socket, IPPROTO_TCP, which, &value, &size), 0);
    return value;
  };
  const int idle_s = option(TCP_KEEPIDLE) + option(TCP_KEEPINTVL) * option(TCP_KEEPCNT);
  EXPECT_EQ(idle_s, 25);
  EXPECT_EQ(option(TCP_USER_TIMEOUT), idle_s * 1000);
  ::close(socket);
}

}  // namespace
}  // namespace tributary
