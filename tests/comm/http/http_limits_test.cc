// Limits on clients of the server: too much, too slow, too often, or not HTTP at all.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/http/http_server.h"
#include "tests/comm/http/loop_thread.h"
#include "tests/comm/http/raw_client.h"

namespace tributary {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

HttpHandlers big_handlers() {
  HttpHandlers handlers;
  handlers.request = [](const HttpRequest& request, const HttpRespond& respond) {
    if (request.path == "/never") return;
    HttpResponse response;
    response.body = request.path == "/big" ? std::string(std::size_t{64} << 20, 'x') : "{}";
    respond(std::move(response));
  };
  return handlers;
}

/// Small bounds, and all the time that a busy machine may take.
HttpServerConfig small_config() {
  HttpServerConfig config;
  config.max_body_bytes = 1000;
  config.max_header_bytes = 500;
  return config;
}

/// Of a server whose client comes late.
constexpr std::chrono::milliseconds kHasty{300};

HttpServerConfig hasty_config() {
  HttpServerConfig config = small_config();
  config.read_timeout = kHasty;
  return config;
}

/// A client of which these bytes have come when the server takes it: no stall makes them late.
class PromptClient : public RawClient {
 public:
  PromptClient(TestServer& server, std::string_view begin) : RawClient(server.address()) {
    server.thread().loop().post([sent = sent_.get_future().share()] { sent.wait(); });
    send(begin);
    sent_.set_value();
  }

 private:
  std::promise<void> sent_;
};

std::string ask(TestServer& server, const std::string& request) {
  const RawClient client(server.address());
  client.send(request);
  return client.read_all();
}

TEST(HttpLimits, TooLargeABody) {
  TestServer server(small_config(), big_handlers());
  const std::string answer =
      ask(server,
          "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1001\r\n\r\n" + std::string(1001, 'x'));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 413 Payload Too Large\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr(R"("code":"too_large")"));
  EXPECT_THAT(ask(server,
                  "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n"
                  "Connection: close\r\n\r\n" +
                      std::string(1000, 'x')),
              StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(ask(server,
                  "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: "
                  "18446744073709551615\r\n\r\n"),
              StartsWith("HTTP/1.1 413"));
}

TEST(HttpLimits, TooLargeAChunkedBody) {
  TestServer server(small_config(), big_handlers());
  std::string request = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) request += "64\r\n" + std::string(100, 'x') + "\r\n";
  EXPECT_THAT(ask(server, request + "0\r\n\r\n"), StartsWith("HTTP/1.1 413"));
}

TEST(HttpLimits, TheAnswerToAnUploadUnderWayArrives) {
  TestServer server(small_config(), big_handlers());
  const RawClient client(server.address());
  std::thread sender([&] {
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4000000\r\n\r\n");
    client.send(std::string(4'000'000, 'x'));
  });
  EXPECT_THAT(client.read_until("too_large"), StartsWith("HTTP/1.1 413"));
  sender.join();
}

TEST(HttpLimits, TooLargeHeaders) {
  TestServer server(small_config(), big_handlers());
  EXPECT_THAT(ask(server, "GET / HTTP/1.1\r\nHost: t\r\nX: " + std::string(600, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask(server, "GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\nHost: t\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

/// Sends a byte at a time until the server closes the connection.
std::string trickle(TestServer& server, const std::string& begin) {
  const PromptClient client(server, begin);
  std::string answer;
  std::thread reader([&] { answer = client.read_all(); });
  for (int i = 0; i < 900 && client.send("x"); ++i) std::this_thread::sleep_for(10ms);
  reader.join();
  return answer;
}

TEST(HttpLimits, SlowRequestsEndInTime) {
  for (const char* begin :
       {"GET / HTTP/1.1\r\nX: ", "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n"}) {
    TestServer server(hasty_config(), big_handlers());
    const std::string answer = trickle(server, begin);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_THAT(answer, HasSubstr(R"("code":"deadline_exceeded")"));
  }
}

/// A client that sends the first 200,000 bytes of a body of `bytes` while the server is held up for
/// so long: more than a read's worth.
class ClientOfAHeldUpServer : public PromptClient {
 public:
  ClientOfAHeldUpServer(TestServer& server, int bytes, std::chrono::milliseconds held_up)
      : PromptClient(server, fmt::format("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n"
                                         "Expect: 100-continue\r\n\r\n",
                                         bytes)) {
    // On the server's own thread, so that it sends nothing between the answer and the wait.
    std::promise<void> done;
    const std::function<void()> look = [&] {
      if (!readable()) return server.thread().loop().post(look);
      EXPECT_EQ(read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
      std::this_thread::sleep_for(held_up);
      send(std::string(200'000, 'x'));
      done.set_value();
    };
    server.thread().loop().post(look);
    done.get_future().wait();
    server.thread().call([] { return true; });  // and `look` has returned
  }
};

HttpServerConfig hasty_config_for_uploads() {
  HttpServerConfig config = hasty_config();
  config.max_body_bytes = 1'000'000;
  return config;
}

/// No read waits at the moment at which it is cancelled.
TEST(HttpLimits, ARequestThatIsBeingReadAtItsDeadlineEnds) {
  TestServer server(hasty_config_for_uploads(), big_handlers());
  const ClientOfAHeldUpServer client(server, 1'000'000, 2 * kHasty);
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
}

/// The client was in time: its whole body had come before the server went on.
TEST(HttpLimits, AServerThatWasHeldUpReadsWhatHasComeBeforeItJudges) {
  TestServer server(hasty_config_for_uploads(), big_handlers());
  const ClientOfAHeldUpServer client(server, 200'000, kHasty + 700ms);
  EXPECT_THAT(client.read_until("{}"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

TEST(HttpLimits, IdleConnectionsAreClosedWithoutAWord) {
  TestServer server(hasty_config(), big_handlers());
  EXPECT_EQ(ask(server, ""), "");
  const std::string answer = PromptClient(server, "GET / HTTP/1.1\r\nHost: t\r\n\r\n").read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n{}"));
}

TEST(HttpLimits, HandlersThatDoNotAnswer) {
  HttpServerConfig config;
  config.response_timeout = 300ms;
  TestServer server(config, big_handlers());
  const std::string answer = ask(server, "GET /never HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 504 Gateway Timeout\r\n"));
  EXPECT_THAT(answer, HasSubstr(R"("code":"deadline_exceeded")"));
}

HttpTraffic traffic_of(TestServer& server) {
  return server.thread().call([&] { return server.server().traffic(); });
}

TEST(HttpLimits, ClientsThatDoNotRead) {
  HttpServerConfig config;
  config.write_timeout = 300ms;
  TestServer server(config, big_handlers());
  const RawClient client(server.address(), 4096);
  client.send("GET /big HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return traffic_of(server).timed_out == 1; }));
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
  EXPECT_EQ(traffic_of(server).responses, (std::map<int, std::uint64_t>{{200, 1}}));
}

TEST(HttpLimits, TooManyTrustedConnections) {
  HttpServerConfig config;
  config.max_connections = 3;
  HttpHandlers handlers = big_handlers();
  handlers.is_trusted = [](const HttpRequest& request) { return request.header("X") == "me"; };
  TestServer server(config, handlers);
  const std::string request = "GET / HTTP/1.1\r\nHost: t\r\nX: me\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.address()));
    clients.back()->send(request);
    EXPECT_THAT(clients.back()->read_until("{}"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_EQ(ask(server, request), "");
  EXPECT_EQ(traffic_of(server).refused, 1U);
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 2; }));
  const RawClient next(server.address());
  next.send(request);
  EXPECT_THAT(next.read_until("{}"), StartsWith("HTTP/1.1 200"));
}

/// A client that holds silent connections keeps them until somebody else needs one.
TEST(HttpLimits, IdleStrangersMakeRoomTheLongestIdleFirst) {
  HttpServerConfig config;
  config.max_connections = 3;
  HttpHandlers handlers = big_handlers();
  handlers.is_trusted = [](const HttpRequest& request) { return request.header("X") == "me"; };
  TestServer server(config, handlers);
  const RawClient trusted(server.address());
  trusted.send("GET / HTTP/1.1\r\nHost: t\r\nX: me\r\n\r\n");
  EXPECT_THAT(trusted.read_until("{}"), StartsWith("HTTP/1.1 200"));
  std::vector<std::unique_ptr<RawClient>> strangers;
  for (int i = 0; i < 2; ++i) {
    strangers.push_back(std::make_unique<RawClient>(server.address()));
    ASSERT_TRUE(eventually([&] { return server.server().connections() == 2 + i; }));
  }
  // The first refreshes itself, so that the second has been idle for longer.
  strangers[0]->send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(strangers[0]->read_until("{}"), StartsWith("HTTP/1.1 200"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(ask(server, "GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"),
                StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(strangers[1]->read_all(), "");
    ASSERT_TRUE(eventually([&] { return server.server().connections() == 2; }));
    strangers[1] = std::make_unique<RawClient>(server.address());
    ASSERT_TRUE(eventually([&] { return server.server().connections() == 3; }));
    std::swap(strangers[0], strangers[1]);
  }
  trusted.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(trusted.read_until("{}"), StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(traffic_of(server).evicted, 2U);
  EXPECT_EQ(traffic_of(server).refused, 0U);
}

TEST(HttpLimits, WhatTheServerRefusesIsCounted) {
  HttpHandlers handlers = big_handlers();
  handlers.may_upgrade = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    if (request.path == "/in") return std::nullopt;
    return error_response(401, "permission_denied", "no");
  };
  handlers.upgraded = [](const HttpRequest&, const std::shared_ptr<WebSocket>&) {};
  TestServer server(small_config(), handlers);
  const std::string upgrade =
      " HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
      "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n";
  for (const std::string& request :
       {std::string("GET / HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"),
        std::string("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 9999\r\n\r\n"),
        "GET / HTTP/1.1\r\nHost: t\r\nX: " + std::string(600, 'x') + "\r\n\r\n",
        std::string("nonsense\r\n\r\n"), "GET /in" + upgrade}) {
    EXPECT_NE(ask(server, request), "") << request;
  }
  const RawClient refused(server.address());  // may ask again
  refused.send("GET /out" + upgrade);
  EXPECT_THAT(refused.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 401"));
  const std::map<int, std::uint64_t> expected{{101, 1}, {200, 1}, {400, 1},
                                              {401, 1}, {413, 1}, {431, 1}};
  EXPECT_EQ(traffic_of(server).responses, expected);
  EXPECT_EQ(traffic_of(server).timed_out, 0U);
}

TEST(HttpLimits, WhatComesTooLateIsCounted) {
  const std::map<int, std::uint64_t> expected{{408, 1}};
  TestServer server(hasty_config(), big_handlers());
  EXPECT_EQ(ask(server, ""), "");
  EXPECT_EQ(traffic_of(server).timed_out, 1U);  // the one that said nothing
  static_cast<void>(PromptClient(server, "GET / HTTP/1.1\r\n").read_all());
  EXPECT_EQ(traffic_of(server).responses, expected);
}

class HttpMalformed : public testing::TestWithParam<std::string> {};

TEST_P(HttpMalformed, IsRefused) {
  TestServer server(small_config(), big_handlers());
  const std::string answer = ask(server, GetParam());
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(answer, HasSubstr(R"("code":"malformed_input")"));
}

using namespace std::string_literals;

INSTANTIATE_TEST_SUITE_P(
    Requests, HttpMalformed,
    testing::Values(
        "\x16\x03\x01\x02garbage of a TLS client\r\n\r\n"s, "GET\r\n\r\n"s,
        "GET / HTTP/9.9\r\nHost: t\r\n\r\n"s, "GET / HTPP/1.1\r\nHost: t\r\n\r\n"s,
        "GET / HTTP/1.1\r\n\r\n"s, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"s,
        "GET / HTTP/1.1\r\nHost: t\r\nX\0Y: 1\r\n\r\n"s,
        "GET / HTTP/1.1\r\nHost: t\r\nno colon\r\n\r\n"s,
        "GET nothing HTTP/1.1\r\nHost: t\r\n\r\n"s, "GET * HTTP/1.1\r\nHost: t\r\n\r\n"s,
        "GET /% HTTP/1.1\r\nHost: t\r\n\r\n"s, "GET /%4 HTTP/1.1\r\nHost: t\r\n\r\n"s,
        "GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n"s, "GET /a%00b HTTP/1.1\r\nHost: t\r\n\r\n"s,
        "GET /a#b HTTP/1.1\r\nHost: t\r\n\r\n"s, "GET http://t HTTP/1.1\r\nHost: t\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1x\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"s,
        "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"s,
        "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"s));

}  // namespace
}  // namespace tributary
