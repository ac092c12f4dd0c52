// What a client may not do to the server: too much, too slowly, too often, or not HTTP at all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
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

HttpServerConfig short_config() {
  HttpServerConfig config;
  config.read_timeout = 300ms;
  config.write_timeout = 300ms;
  config.response_timeout = 300ms;
  config.max_body_bytes = 1000;
  config.max_header_bytes = 500;
  return config;
}

std::string ask(TestServer& server, const std::string& request) {
  const RawClient client(server.address());
  client.send(request);
  return client.read_all();
}

TEST(HttpLimits, TooLargeABody) {
  TestServer server(short_config(), big_handlers());
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
  TestServer server(short_config(), big_handlers());
  std::string request = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 11; ++i) request += "64\r\n" + std::string(100, 'x') + "\r\n";
  EXPECT_THAT(ask(server, request + "0\r\n\r\n"), StartsWith("HTTP/1.1 413"));
}

TEST(HttpLimits, TheAnswerToAnUploadUnderWayArrives) {
  TestServer server(short_config(), big_handlers());
  const RawClient client(server.address());
  std::thread sender([&] {
    client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 4000000\r\n\r\n");
    client.send(std::string(4'000'000, 'x'));
  });
  EXPECT_THAT(client.read_until("too_large"), StartsWith("HTTP/1.1 413"));
  sender.join();
}

TEST(HttpLimits, TooLargeHeaders) {
  TestServer server(short_config(), big_handlers());
  EXPECT_THAT(ask(server, "GET / HTTP/1.1\r\nHost: t\r\nX: " + std::string(600, 'x') + "\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(ask(server, "GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\nHost: t\r\n\r\n"),
              StartsWith("HTTP/1.1 431"));
}

/// Sends a byte at a time until the server has had enough.
std::string trickle(TestServer& server, const std::string& begin) {
  const RawClient client(server.address());
  client.send(begin);
  std::string answer;
  std::thread reader([&] { answer = client.read_all(); });
  for (int i = 0; i < 400 && client.send("x"); ++i) std::this_thread::sleep_for(10ms);
  reader.join();
  return answer;
}

TEST(HttpLimits, SlowRequestsEndInTime) {
  TestServer server(short_config(), big_handlers());
  for (const char* begin :
       {"GET / HTTP/1.1\r\nX: ", "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\n"}) {
    const std::string answer = trickle(server, begin);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 Request Timeout\r\n"));
    EXPECT_THAT(answer, HasSubstr(R"("code":"deadline_exceeded")"));
  }
}

TEST(HttpLimits, IdleConnectionsAreClosedWithoutAWord) {
  TestServer server(short_config(), big_handlers());
  EXPECT_EQ(ask(server, ""), "");
  const std::string answer = ask(server, "GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n{}"));
}

TEST(HttpLimits, HandlersThatDoNotAnswer) {
  TestServer server(short_config(), big_handlers());
  const std::string answer = ask(server, "GET /never HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 504 Gateway Timeout\r\n"));
  EXPECT_THAT(answer, HasSubstr(R"("code":"deadline_exceeded")"));
}

TEST(HttpLimits, ClientsThatDoNotRead) {
  TestServer server(short_config(), big_handlers());
  const RawClient client(server.address(), 4096);
  client.send("GET /big HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 1; }));
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST(HttpLimits, TooManyConnections) {
  HttpServerConfig config;
  config.max_connections = 3;
  TestServer server(config, big_handlers());
  const std::string request = "GET / HTTP/1.1\r\nHost: t\r\n\r\n";
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.address()));
    clients.back()->send(request);
    EXPECT_THAT(clients.back()->read_until("{}"), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_EQ(ask(server, request), "");
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 2; }));
  const RawClient next(server.address());
  next.send(request);
  EXPECT_THAT(next.read_until("{}"), StartsWith("HTTP/1.1 200"));
}

class HttpMalformed : public testing::TestWithParam<std::string> {};

TEST_P(HttpMalformed, IsRefused) {
  TestServer server(short_config(), big_handlers());
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
