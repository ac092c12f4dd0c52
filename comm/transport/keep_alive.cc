#include "comm/transport/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace tributary {
namespace {

constexpr int kIdleSeconds = 10;
constexpr int kIntervalSeconds = 5;
constexpr int kProbes = 3;
/// There are no probes while sent bytes are unacknowledged: these have the same time.
constexpr int kUnacknowledgedMs = (kIdleSeconds + kProbes * kIntervalSeconds) * 1000;

void set_option(int socket, int level, int option, int value) noexcept {
  static_cast<void>(setsockopt(socket, level, option, &value, sizeof(value)));
}

}  // namespace

void set_keep_alive(int socket) noexcept {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnacknowledgedMs);
}

}  // namespace tributary
