#include "comm/http/http_server.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/http/http_client.h"
#include "core/base/error.h"
#include "tests/comm/http/loop_thread.h"
#include "tests/comm/http/raw_client.h"

namespace tributary {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

HttpResponse text(std::string body) {
  HttpResponse response;
  response.content_type = "text/plain";
  response.body = std::move(body);
  return response;
}

/// Answers with the request's own parts.
void echo(const HttpRequest& request, const HttpRespond& respond) {
  if (request.path == "/missing") return respond(error_response(404, "not_found", "no such path"));
  if (request.path == "/throws") throw std::runtime_error("a bug");
  if (request.path == "/split") {
    HttpResponse response = text("x");
    response.headers.push_back({"X-Bad", "a\r\nSet-Cookie: b"});
    return respond(std::move(response));
  }
  respond(
      text(fmt::format("{} {}?{} {}", request.method, request.path, request.query, request.body)));
}

HttpHandlers echo_handlers() {
  HttpHandlers handlers;
  handlers.request = echo;
  return handlers;
}

Deadline soon() {
  return Deadline::after(kPatience);
}

TEST(HttpServer, AnswersWithItsHeaders) {
  TestServer server({}, echo_handlers());
  const RawClient client(server.address());
  client.send("GET /a%20b/c?x=%20 HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nServer: tributary\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 17\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nGET /a b/c?x=%20 "));
}

TEST(HttpServer, KeepsTheConnection) {
  TestServer server({}, echo_handlers());
  HttpClient client({parse_url(server.address()), "", "", 1024});
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(client.request("POST", "/x", "body", soon()).body, "POST /x? body");
    EXPECT_EQ(server.server().connections(), 1);
  }
  EXPECT_EQ(client.request("GET", "/missing", "", soon()).status, 404);
  EXPECT_EQ(client.request("GET", "/x", "", soon()).status, 200);
  EXPECT_EQ(server.server().connections(), 1);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server({}, echo_handlers());
  const RawClient client(server.address());
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests += fmt::format("POST /{} HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc", i);
  }
  requests += "GET /end HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n";
  client.send(requests);
  const std::string answer = client.read_all();
  std::size_t from = 0;
  for (int i = 0; i < 50; ++i) {
    from = answer.find(fmt::format("POST /{}? abc", i), from);
    ASSERT_NE(from, std::string::npos) << i;
  }
  EXPECT_NE(answer.find("GET /end? ", from), std::string::npos);
}

TEST(HttpServer, HeadIsGetWithoutTheBody) {
  TestServer server({}, echo_handlers());
  const RawClient client(server.address());
  client.send("HEAD /h HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 8\r\n"));
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\n"));
}

TEST(HttpServer, Http10ClosesUnlessAsked) {
  TestServer server({}, echo_handlers());
  const RawClient plain(server.address());
  plain.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_THAT(plain.read_all(), HasSubstr("\r\nConnection: close\r\n"));
  const RawClient keeps(server.address());
  keeps.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n");
  const std::string answer = keeps.read_all();
  EXPECT_THAT(answer, HasSubstr("\r\nConnection: keep-alive\r\n"));
  EXPECT_THAT(answer, HasSubstr("GET /2? "));
}

TEST(HttpServer, SaysContinueToWhoeverWaitsForIt) {
  TestServer server({}, echo_handlers());
  const RawClient client(server.address());
  client.send(
      "POST /c HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /c? ok"));
}

TEST(HttpServer, ExceptionsAndUnsendableAnswersAre500) {
  TestServer server({}, echo_handlers());
  HttpClient client({parse_url(server.address()), "", "", 1024});
  const HttpResponse thrown = client.request("GET", "/throws", "", soon());
  EXPECT_EQ(thrown.status, 500);
  EXPECT_EQ(thrown.body, R"({"error":{"code":"internal","message":"a bug"}})"
                         "\n");
  const HttpResponse split = client.request("GET", "/split", "", soon());
  EXPECT_EQ(split.status, 500);
  EXPECT_EQ(split.header("Set-Cookie"), "");
}

TEST(HttpServer, ServesSeveralThreads) {
  TestServer server({}, echo_handlers());
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      HttpClient client({parse_url(server.address()), "", "", 1024});
      for (int i = 0; i < 50; ++i) {
        const std::string path = fmt::format("/{}/{}", t, i);
        if (client.request("GET", path, "", soon()).body == fmt::format("GET {}? ", path)) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 200);
}

TEST(HttpServer, AnswersComeFromAnyThreadAndOnce) {
  std::mutex mutex;
  std::vector<std::thread> threads;
  HttpHandlers handlers;
  handlers.request = [&](const HttpRequest&, const HttpRespond& respond) {
    const std::lock_guard lock(mutex);
    threads.emplace_back([respond] {
      respond(text("first"));
      respond(text("second"));
    });
  };
  TestServer server({}, handlers);
  HttpClient client({parse_url(server.address()), "", "", 1024});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.request("GET", "/", "", soon()).body, "first");
  server.stop();
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpServer, LateAnswersAreIgnored) {
  std::promise<HttpRespond> asked;
  HttpHandlers handlers;
  handlers.request = [&](const HttpRequest&, HttpRespond respond) {
    asked.set_value(std::move(respond));
  };
  HttpRespond respond;
  {
    TestServer server({}, handlers);
    const RawClient client(server.address());
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    auto future = asked.get_future();
    respond = await(future);
    server.stop();
    EXPECT_EQ(client.read_all(), "");
    respond(text("the server is gone"));
  }
  respond(text("the loop is gone"));
}

TEST(HttpServer, AnswersAfterTheClientLeftAreIgnored) {
  std::promise<HttpRespond> asked;
  HttpHandlers handlers;
  handlers.request = [&](const HttpRequest&, HttpRespond respond) {
    asked.set_value(std::move(respond));
  };
  TestServer server({}, handlers);
  {
    const RawClient client(server.address());
    client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
    auto future = asked.get_future();
    const HttpRespond respond = await(future);
    respond(text(std::string(1 << 20, 'x')));
  }
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST(HttpServer, MayBeDestroyedByItsHandler) {
  LoopThread thread;
  std::unique_ptr<HttpServer> server;
  HttpHandlers handlers;
  handlers.request = [&](const HttpRequest&, const HttpRespond& respond) {
    server = nullptr;
    respond(text("gone"));
  };
  const std::string address = thread.call([&] {
    server = std::make_unique<HttpServer>(thread.loop(), HttpServerConfig{}, handlers);
    return server->address();
  });
  const RawClient client(address);
  client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_EQ(client.read_all(), "");
}

TEST(HttpServer, RefusesBadAddresses) {
  EventLoop loop;
  HttpServerConfig config;
  for (const char* bad : {"", "127.0.0.1", "nowhere.example:80", "127.0.0.1:65536", ":80"}) {
    config.listen = bad;
    try {
      const HttpServer server(loop, config, echo_handlers());
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
  config.listen = "127.0.0.1:0";
  const HttpServer first(loop, config, echo_handlers());
  config.listen = first.address();
  try {
    const HttpServer second(loop, config, echo_handlers());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr(first.address()));
  }
}

TEST(HttpServer, KnowsLoopback) {
  for (const char* yes : {"127.0.0.1:1", "127.8.9.10:0", "[::1]:80", "localhost:80"}) {
    EXPECT_TRUE(is_loopback(yes)) << yes;
  }
  for (const char* no : {"0.0.0.0:1", "10.0.0.1:1", "[::]:80", "[fe80::1]:80"}) {
    EXPECT_FALSE(is_loopback(no)) << no;
  }
  EXPECT_THROW((void)is_loopback("example.com:80"), Error);
}

}  // namespace
}  // namespace tributary
