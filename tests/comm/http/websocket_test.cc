#include "comm/http/websocket.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/http_server.h"
#include "core/base/error.h"
#include "tests/comm/http/loop_thread.h"
#include "tests/comm/http/raw_client.h"

namespace tributary {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

/// A server that echoes, and remembers its sockets and why they ended.
struct EchoServer {
  explicit EchoServer(const HttpServerConfig& config = {}, bool echoes = true) {
    HttpHandlers handlers;
    handlers.request = [](const HttpRequest&, const HttpRespond& respond) {
      respond(error_response(404, "not_found", "no page"));
    };
    handlers.may_upgrade = [](const HttpRequest& request) -> std::optional<HttpResponse> {
      if (request.header("Authorization") == "Bearer good") return std::nullopt;
      if (request.path == "/busy") return error_response(503, "unavailable", "come back");
      return error_response(401, "permission_denied", "no token");
    };
    handlers.upgraded = [this, echoes](const HttpRequest&, std::shared_ptr<WebSocket> with) {
      WebSocketHandlers on;
      on.message = [raw = with.get(), echoes](std::string_view text) {
        if (text == "throw") throw Error(ErrorCode::kMalformedInput, "a bad message");
        if (echoes) raw->send(std::string(text));
      };
      on.closed = [this](const Status& reason) { closed.set_value(reason); };
      with->set_handlers(std::move(on));
      socket = std::move(with);
      opened.set_value();
    };
    server = std::make_unique<TestServer>(config, std::move(handlers));
  }
  ~EchoServer() {
    server->thread().call([this] { socket = nullptr; });
  }
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  /// A client may read the answer to its upgrade before the server's handler is called.
  void wait_open() {
    const auto open = opened.get_future();
    ASSERT_EQ(open.wait_for(kPatience), std::future_status::ready);
  }

  std::promise<void> opened;
  std::promise<Status> closed;
  std::shared_ptr<WebSocket> socket;
  std::unique_ptr<TestServer> server;
};

/// A client's end, on a loop of its own.
struct Client {
  explicit Client(WebSocketClientConfig config) {
    if (config.headers.empty()) config.headers = {{"Authorization", "Bearer good"}};
    auto outcome = connected.get_future();
    connect_websocket(thread.loop(), config,
                      [this](std::shared_ptr<WebSocket> with, const Status& why) {
                        socket = std::move(with);
                        if (socket != nullptr) {
                          WebSocketHandlers on;
                          on.message = [this](std::string_view text) { receive(text); };
                          on.closed = [this](const Status& reason) { closed.set_value(reason); };
                          socket->set_handlers(std::move(on));
                        }
                        connected.set_value(why);
                      });
    status = await(outcome);
  }
  ~Client() {
    thread.call([this] { socket = nullptr; });
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void receive(std::string_view text) {
    const std::lock_guard lock(mutex);
    received.emplace_back(text);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex);
    return received.size();
  }

  std::mutex mutex;
  std::vector<std::string> received;
  std::promise<Status> connected;
  std::promise<Status> closed;
  Status status;
  std::shared_ptr<WebSocket> socket;
  LoopThread thread;
};

WebSocketClientConfig to(const EchoServer& server) {
  WebSocketClientConfig config;
  config.url = parse_url(server.server->address());
  return config;
}

constexpr const char* kUpgrade =
    "GET / HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Authorization: Bearer good\r\n\r\n";

TEST(WebSocket, EchoesInOrderFromAnyThread) {
  EchoServer server;
  Client client(to(server));
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  for (int i = 0; i < 500; ++i) client.socket->send(fmt::format("message {}", i));
  ASSERT_TRUE(eventually([&] { return client.count() == 500; }));
  for (std::size_t i = 0; i < 500; ++i) {
    EXPECT_EQ(client.received[i], fmt::format("message {}", i));
  }
  EXPECT_EQ(server.server->server().connections(), 1);
}

TEST(WebSocket, CarriesBigMessagesUpToItsLimit) {
  EchoServer server;
  Client client(to(server));
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  const std::string big(std::size_t{16} << 20, 'x');
  client.socket->send(big);
  ASSERT_TRUE(eventually([&] { return client.count() == 1; }));
  EXPECT_TRUE(client.received[0] == big);
  client.socket->send(big + "y");
  auto why = server.closed.get_future();
  EXPECT_EQ(await(why).code(), ErrorCode::kTooLarge);
  auto ended = client.closed.get_future();
  EXPECT_EQ(await(ended).code(), ErrorCode::kUnavailable);
}

TEST(WebSocket, ClosesWithWhatWasQueued) {
  EchoServer server({}, false);
  Client client(to(server));
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  server.wait_open();
  server.server->thread().call([&] {
    for (int i = 0; i < 100; ++i) server.socket->send(std::string(10'000, 'x'));
    server.socket = nullptr;
  });
  auto why = client.closed.get_future();
  EXPECT_EQ(await(why).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(client.count(), 100U);
  EXPECT_TRUE(eventually([&] { return server.server->server().connections() == 0; }));
}

TEST(WebSocket, ClientsThatCloseAreNoticed) {
  EchoServer server;
  {
    Client client(to(server));
    ASSERT_TRUE(client.status.ok()) << client.status.message();
    client.socket->close();
    auto why = server.closed.get_future();
    const Status status = await(why);
    EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("1000"));
  }
  EXPECT_TRUE(eventually([&] { return server.server->server().connections() == 0; }));
}

TEST(WebSocket, RefusalsSayWhy) {
  EchoServer server;
  WebSocketClientConfig config = to(server);
  config.headers = {{"Authorization", "Bearer bad"}};
  const Client denied(config);
  EXPECT_EQ(denied.socket, nullptr);
  EXPECT_EQ(denied.status.code(), ErrorCode::kPermissionDenied);
  EXPECT_THAT(denied.status.message(), HasSubstr("no token"));
  config.url.path = "/busy";
  const Client busy(config);
  EXPECT_EQ(busy.status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(busy.status.message(), HasSubstr("answered 503: "));
}

TEST(WebSocket, NobodyListens) {
  WebSocketClientConfig config;
  config.url = parse_url("127.0.0.1:1");
  const Client client(config);
  EXPECT_EQ(client.status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(client.status.message(), HasSubstr("refused"));
}

TEST(WebSocket, ServersThatDoNotAnswer) {
  // Takes connections into its backlog; its loop does not run.
  EventLoop loop;
  const HttpServer server(loop, {}, {});
  WebSocketClientConfig config;
  config.url = parse_url(server.address());
  config.timeout = 200ms;
  const Client client(config);
  EXPECT_EQ(client.status.code(), ErrorCode::kDeadlineExceeded) << client.status.message();
}

TEST(WebSocket, TheEndOfTheServerIsNoticed) {
  EchoServer server;
  Client client(to(server));
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  server.server->stop();
  auto why = client.closed.get_future();
  EXPECT_EQ(await(why).code(), ErrorCode::kUnavailable);
}

/// Of idle connections: longer than any step of these tests takes.
constexpr std::chrono::milliseconds kIdleTimeout{2'000};

TEST(WebSocket, SilentClientsAreClosed) {
  using namespace std::string_literals;
  HttpServerConfig config;
  config.websocket_idle_timeout = kIdleTimeout;
  EchoServer server(config);
  const RawClient silent(server.server->address());
  silent.send(kUpgrade);
  EXPECT_THAT(silent.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 101"));
  // Into the first of the two intervals of the timeout.
  std::this_thread::sleep_for(kIdleTimeout / 8);
  const auto sent = std::chrono::steady_clock::now();
  silent.send("\x81\x80\0\0\0\0"s);  // an empty message
  const std::string echo = "\x81\0"s;
  EXPECT_TRUE(silent.read_until(echo).ends_with(echo));
  auto why = server.closed.get_future();
  const Status status = await(why);
  const std::chrono::duration<double, std::milli> silence = std::chrono::steady_clock::now() - sent;
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  const std::string text = status.message().substr(status.message().rfind(" for ") + 5);
  EXPECT_LE(std::stod(text), silence.count()) << status.message();
}

TEST(WebSocket, PingsKeepAnIdleConnection) {
  HttpServerConfig config;
  config.websocket_idle_timeout = kIdleTimeout;
  EchoServer server(config);
  WebSocketClientConfig from = to(server);
  from.idle_timeout = kIdleTimeout;
  Client client(from);
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  auto why = client.closed.get_future();
  EXPECT_EQ(why.wait_for(3 * kIdleTimeout), std::future_status::timeout);
  client.socket->send("still there");
  EXPECT_TRUE(eventually([&] { return client.count() == 1; }));
}

TEST(WebSocket, ABacklogEndsTheConnection) {
  HttpServerConfig config;
  config.max_websocket_backlog_bytes = std::size_t{8} << 20;
  EchoServer server(config, false);
  const RawClient deaf(server.server->address(), 4096);
  deaf.send(kUpgrade);
  EXPECT_THAT(deaf.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 101"));
  server.wait_open();
  for (int i = 0; i < 200; ++i) server.socket->send(std::string(1 << 20, 'x'));
  auto why = server.closed.get_future();
  const Status status = await(why);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("does not read"));
  EXPECT_TRUE(eventually([&] { return server.server->server().connections() == 0; }));
}

TEST(WebSocket, ExceptionsOfHandlersEndTheConnection) {
  EchoServer server;
  Client client(to(server));
  ASSERT_TRUE(client.status.ok()) << client.status.message();
  client.socket->send("throw");
  auto why = server.closed.get_future();
  const Status status = await(why);
  EXPECT_EQ(status.code(), ErrorCode::kMalformedInput);
  EXPECT_EQ(status.message(), "a bad message");
  auto ended = client.closed.get_future();
  EXPECT_THAT(await(ended).message(), HasSubstr("1011"));
}

TEST(WebSocket, BinaryAndBrokenFramesEndTheConnection) {
  using namespace std::string_literals;
  // Masked frames with an empty mask: binary "ab"; a reserved opcode; text that is no UTF-8.
  for (const std::string& frame :
       {"\x82\x82\0\0\0\0ab"s, "\x83\x80\0\0\0\0"s, "\x81\x82\0\0\0\0\xff\xfe"s, "\x81\x02zz"s}) {
    EchoServer server;
    const RawClient client(server.server->address());
    client.send(kUpgrade);
    EXPECT_THAT(client.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 101"));
    client.send(frame);
    auto why = server.closed.get_future();
    EXPECT_FALSE(await(why).ok());
    const std::string answer = client.read_all();
    if (frame[0] == '\x82') {
      EXPECT_THAT(answer, StartsWith("\x88\x02\x03\xeb"));  // 1003
    }
  }
}

TEST(WebSocket, RequestsThatAreNotQuiteUpgrades) {
  EchoServer server;
  const RawClient plain(server.server->address());
  plain.send("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(plain.read_all(), StartsWith("HTTP/1.1 404"));
  const RawClient eager(server.server->address());
  eager.send(kUpgrade + std::string("\x81\x80zzzz"));
  EXPECT_THAT(eager.read_all(), StartsWith("HTTP/1.1 400"));
}

}  // namespace
}  // namespace tributary
