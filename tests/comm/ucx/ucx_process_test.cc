// Peers in their own processes: killed, stopped, or not speaking our protocol at all.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/transport_endpoint.h"
#include "tests/comm/ucx/peer_program.h"
#include "tests/sanitized.h"

namespace tributary::testing_support {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Every payload lands in the same memory.
class OneLanding final : public TransportHandler {
 public:
  OneLanding(std::size_t bytes, std::size_t pieces) : memory_(bytes), pieces_(pieces) {}
  void before_landing(std::function<void()> function) { before_ = std::move(function); }

  std::optional<Landing> on_message(PeerId peer, std::uint16_t /*type*/,
                                    std::span<const std::byte> /*header*/,
                                    std::size_t payload_bytes) override {
    EXPECT_EQ(payload_bytes, memory_.size());
    peer_ = peer;
    if (before_) before_();
    Landing landing;
    // Backwards, so that no two are adjacent in order.
    for (std::size_t i = pieces_; i-- > 0;) {
      const std::size_t begin = i * memory_.size() / pieces_;
      const std::size_t end = (i + 1) * memory_.size() / pieces_;
      landing.pieces.push_back(std::span(memory_).subspan(begin, end - begin));
    }
    landing.done = [this](const Status& status) {
      if (done_calls++ > 0) return;
      sum_at_done = sum();
      done.set_value(status);
    };
    return landing;
  }
  void on_disconnect(PeerId peer, const Status& reason) override {
    EXPECT_EQ(peer, peer_);
    EXPECT_EQ(done_calls, 1);
    disconnected.set_value(reason);
  }
  [[nodiscard]] PeerId peer() const { return peer_; }
  [[nodiscard]] std::uint64_t sum() const {
    return std::accumulate(memory_.begin(), memory_.end(), std::uint64_t{0},
                           [](std::uint64_t total, std::byte byte) {
                             return total + std::to_integer<std::uint64_t>(byte);
                           });
  }

  std::promise<Status> done;
  std::promise<Status> disconnected;
  std::atomic<int> done_calls = 0;
  std::uint64_t sum_at_done = 0;

 private:
  std::vector<std::byte> memory_;
  const std::size_t pieces_;
  std::function<void()> before_;
  std::atomic<PeerId> peer_ = 0;
};

/// While another transfer runs, nobody writes to the old landing any more.
void expect_left_alone(const OneLanding& handler) {
  Endpoint other(make_ucx_transport, {.listen = "127.0.0.1:0"});
  const PeerProgram another({"send", other.address(), "1000000"});
  EXPECT_TRUE(other.receive().status.ok());
  EXPECT_EQ(handler.sum(), handler.sum_at_done);
  EXPECT_EQ(handler.done_calls, 1);
}

/// Writable memory of this process, touched or not.
std::size_t writable_bytes() {
  std::size_t all = 0, resident = 0, shared = 0, text = 0, library = 0, data = 0;
  std::ifstream("/proc/self/statm") >> all >> resident >> shared >> text >> library >> data;
  return data * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// For payloads of one size whose bytes do not matter.
class SameLanding final : public TransportHandler {
 public:
  SameLanding(std::size_t bytes, int payloads) : memory_(bytes), left_(payloads) {}

  std::optional<Landing> on_message(PeerId /*peer*/, std::uint16_t /*type*/,
                                    std::span<const std::byte> /*header*/,
                                    std::size_t payload_bytes) override {
    EXPECT_EQ(payload_bytes, memory_.size());
    return Landing{.pieces = {memory_}, .done = [this](const Status& status) {
                     most_writable = std::max(most_writable, writable_bytes());
                     if (left_ > 0 && (--left_ == 0 || !status.ok())) {
                       left_ = 0;
                       all.set_value(status);
                     }
                   }};
  }
  void on_disconnect(PeerId /*peer*/, const Status& reason) override {
    if (std::exchange(left_, 0) > 0) all.set_value(reason);
  }

  std::promise<Status> all;
  std::size_t most_writable = 0;  // at the end of a payload

 private:
  std::vector<std::byte> memory_;
  int left_;
};

Status wait(std::promise<Status>& promise) {
  auto future = promise.get_future();
  if (future.wait_for(kAmple) == std::future_status::ready) return future.get();
  return {ErrorCode::kInternal, "the test waited in vain"};
}

void expect_echo(Endpoint& client, PeerId peer, std::size_t bytes) {
  const std::vector<std::byte> payload = test_bytes(bytes, bytes);
  client.send(peer, 3, "echo", payload);
  const Received echo = client.receive();
  EXPECT_TRUE(echo.status.ok()) << echo.status.message();
  EXPECT_TRUE(echo.payload == payload);
}

}  // namespace

TEST(UcxProcess, EchoFromAnotherProcess) {
  const PeerProgram server({"echo"});
  Endpoint client(make_ucx_transport, {});
  const PeerId peer = client.transport().connect(server.read_line());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{150'000}, 8 * kMiB + 1}) {
    expect_echo(client, peer, bytes);
  }
}

TEST(UcxProcess, AnIdlePeerIsKilled) {
  const PeerProgram server({"echo"});
  Endpoint client(make_ucx_transport, {});
  const PeerId peer = client.transport().connect(server.read_line());
  expect_echo(client, peer, 10);
  server.signal(SIGKILL);
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kUnavailable);
}

TEST(UcxProcess, ASenderIsKilledInTheMiddleOfATransfer) {
  constexpr std::size_t kBytes = 256 * kMiB;  // takes some 0.3 s
  for (const std::size_t pieces : {1, 3}) {
    OneLanding handler(kBytes, pieces);
    const auto server = make_ucx_transport({.listen = "127.0.0.1:0"}, handler);
    const PeerProgram sender({"send", server->address(), std::to_string(kBytes)});
    handler.before_landing([&] { sender.signal(SIGKILL); });
    EXPECT_FALSE(wait(handler.done).ok());
    EXPECT_FALSE(wait(handler.disconnected).ok());
    expect_left_alone(handler);
  }
}

// The receive has a deadline, and nobody writes to the landing after it.
TEST(UcxProcess, ASenderIsStoppedInTheMiddleOfATransfer) {
  constexpr std::size_t kBytes = 64 * kMiB;
  OneLanding handler(kBytes, 3);
  const auto server = make_ucx_transport(
      {.listen = "127.0.0.1:0", .send_timeout = std::chrono::milliseconds(500)}, handler);
  const PeerProgram sender({"send", server->address(), std::to_string(kBytes)});
  handler.before_landing([&] { sender.signal(SIGSTOP); });
  EXPECT_EQ(wait(handler.done).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(wait(handler.disconnected).code(), ErrorCode::kDeadlineExceeded);
  sender.signal(SIGCONT);  // it goes on to send, to nobody
  expect_left_alone(handler);
}

TEST(UcxProcess, AStoppedSenderLetsGoWhenWeDisconnect) {
  constexpr std::size_t kBytes = 64 * kMiB;
  OneLanding handler(kBytes, 3);
  const auto server = make_ucx_transport(
      {.listen = "127.0.0.1:0", .send_timeout = 2 * std::chrono::milliseconds(kAmple)}, handler);
  const PeerProgram sender({"send", server->address(), std::to_string(kBytes)});
  std::promise<void> stopped;
  handler.before_landing([&] {
    sender.signal(SIGSTOP);
    stopped.set_value();
  });
  ASSERT_EQ(stopped.get_future().wait_for(kAmple), std::future_status::ready);
  server->disconnect(handler.peer());
  EXPECT_EQ(wait(handler.done).code(), ErrorCode::kUnavailable);
  sender.signal(SIGCONT);  // it goes on to send, to nobody
  expect_left_alone(handler);
}

// Payloads in transit to us have 128 MiB of memory; the others wait at their senders.
TEST(UcxProcess, PayloadsWaitForMemory) {
  constexpr std::size_t kBytes = 32 * kMiB;
  constexpr int kPayloads = 12;
  SameLanding handler(kBytes, kPayloads);
  // The last of them waits for all others.
  const auto server =
      make_ucx_transport({.listen = "127.0.0.1:0", .send_timeout = kAmple}, handler);
  const std::vector<std::byte> payload(kBytes);
  Endpoint client(make_ucx_transport, {.send_timeout = kAmple});
  std::vector<PeerId> peers;  // one peer alone does not get that much memory
  for (int i = 0; i < 3; ++i) peers.push_back(client.transport().connect(server->address()));
  const std::size_t before = writable_bytes();
  for (std::size_t i = 0; i < kPayloads; ++i) client.send(peers[i % 3], 1, "", payload);
  EXPECT_EQ(wait(handler.all).message(), "");
  // The bound, plus UCX's own memory. Sanitizers keep freed memory.
  if (!test::kSanitized) {
    EXPECT_LT(handler.most_writable, before + 160 * kMiB);
  }
}

// It is received when no other payload is in transit.
TEST(UcxProcess, APayloadThatIsLargerThanTheMemoryForAllArrives) {
  constexpr std::size_t kBytes = 160 * kMiB;
  SameLanding handler(kBytes, 1);
  const auto server = make_ucx_transport({.listen = "127.0.0.1:0"}, handler);
  const PeerProgram sender({"send", server->address(), std::to_string(kBytes)});
  EXPECT_EQ(wait(handler.all).message(), "");
}

TEST(UcxProcess, AReceiverIsKilledInTheMiddleOfATransfer) {
  const PeerProgram server({"echo"});
  Endpoint client(make_ucx_transport, {});
  const PeerId peer = client.transport().connect(server.read_line());
  expect_echo(client, peer, 10);
  const std::vector<std::byte> payload(256 * kMiB);
  Completion sent;
  client.send(peer, 1, "", payload, sent.callback());
  server.signal(SIGKILL);
  EXPECT_FALSE(client.wait_disconnect(peer).ok());
  EXPECT_FALSE(sent.wait().ok());
  EXPECT_EQ(sent.calls(), 1);
}

TEST(UcxProcess, AStoppedReceiverIsCutOff) {
  const PeerProgram server({"echo"});
  TransportConfig config;
  config.send_timeout = std::chrono::seconds(5);  // the echo, of another process, is within it
  Endpoint client(make_ucx_transport, config);
  const PeerId peer = client.transport().connect(server.read_line());
  expect_echo(client, peer, 10);
  server.signal(SIGSTOP);
  const std::vector<std::byte> payload(64 * kMiB);
  Completion sent;
  client.send(peer, 1, "", payload, sent.callback());
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sent.wait().code(), ErrorCode::kDeadlineExceeded);
}

// Header-only messages wait in the socket's buffer and then in UCX. The connection ends by the
// bound on bytes, or by the age of the first message that the socket does not take.
TEST(UcxProcess, AStoppedReceiverIsCutOffFromSmallMessages) {
  const PeerProgram server({"echo"});
  TransportConfig config;
  config.max_outgoing_bytes = kMiB;
  Endpoint client(make_ucx_transport, config);
  const PeerId peer = client.transport().connect(server.read_line());
  expect_echo(client, peer, 10);
  server.signal(SIGSTOP);
  for (int i = 0; i < 10000; ++i) client.send(peer, 1, std::string(4000, 'x'));
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kDeadlineExceeded);
}

TEST(UcxProcess, ConnectToAStoppedServerEndsInTime) {
  const PeerProgram server({"echo"});
  const std::string address = server.read_line();
  server.signal(SIGSTOP);
  TransportConfig config;
  config.connect_timeout = std::chrono::milliseconds(300);
  Endpoint client(make_ucx_transport, config);
  const PeerId peer = client.transport().connect(address);
  Completion sent;
  client.send(peer, 1, "", {}, sent.callback());
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(sent.calls(), 1);
}

}  // namespace tributary::testing_support
