#include "comm/http/http_client.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <latch>
#include <string>
#include <thread>
#include <utility>

#include "comm/http/http_server.h"
#include "core/base/error.h"
#include "tests/comm/http/loop_thread.h"
#include "tests/comm/http/raw_client.h"
#include "tests/loopback_listener.h"

namespace {

constexpr const char* kSlowName = "slow.example";
constexpr const char* kTwoAddresses = "two.example";
std::latch slow_look_up(1);  // it ends when the test says so

}  // namespace

/// In place of the system's: one name takes as long as the test wants, one has the addresses
/// 127.0.0.2 and 127.0.0.1.
extern "C" int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                           addrinfo** result) {
  if (name != nullptr && std::string(name) == kSlowName) {
    slow_look_up.wait();
    return EAI_AGAIN;
  }
  const auto system = reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (name != nullptr && std::string(name) == kTwoAddresses) {
    const int error = system("127.0.0.2", service, hints, result);
    addrinfo* last = *result;
    while (error == 0 && last->ai_next != nullptr) last = last->ai_next;
    return error != 0 ? error : system("127.0.0.1", service, hints, &last->ai_next);
  }
  return system(name, service, hints, result);
}

namespace tributary {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr int kClientPatienceMs = 20'000;

bool readable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, kClientPatienceMs) > 0;
}

void serve_one(const test::LoopbackListener& listener, const std::string& answer) {
  if (!readable(listener.fd())) return;
  const int fd = listener.accept();
  std::array<char, 65536> bytes;
  if (fd >= 0 && readable(fd) && recv(fd, bytes.data(), bytes.size(), 0) > 0) {
    (void)!send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
  }
  close(fd);
}

/// A port of 127.0.0.2 that swallows packets: its queue of connections is full.
class Swallower {
 public:
  explicit Swallower(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    const auto* address = reinterpret_cast<const sockaddr*>(&at);
    EXPECT_EQ(bind(listener_, address, sizeof(at)), 0);
    EXPECT_EQ(listen(listener_, 0), 0);
    EXPECT_EQ(connect(first_, address, sizeof(at)), 0);
  }
  ~Swallower() {
    close(first_);
    close(listener_);
  }
  Swallower(const Swallower&) = delete;
  Swallower& operator=(const Swallower&) = delete;

 private:
  int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int first_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
};

/// A server that answers the first bytes of one connection with fixed bytes, and closes.
class RawServer {
 public:
  explicit RawServer(std::string answer)
      : thread_([this, text = std::move(answer)] { serve_one(listener_, text); }) {}
  ~RawServer() {
    listener_.end();
    thread_.join();
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return listener_.address(); }

 private:
  test::LoopbackListener listener_;
  std::thread thread_;
};

Deadline soon() {
  return Deadline::after(kPatience);
}

HttpClientConfig to(const std::string& address) {
  HttpClientConfig config;
  config.url = parse_url(address);
  config.max_response_bytes = 1000;
  return config;
}

ErrorCode code_of(HttpClient& client, Deadline deadline, std::string* message = nullptr) {
  try {
    (void)client.request("GET", "/", "", deadline);
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return ErrorCode::kOk;
}

HttpHandlers answers_nothing() {
  HttpHandlers handlers;
  handlers.request = [](const HttpRequest&, const HttpRespond& respond) { respond({}); };
  return handlers;
}

TEST(HttpClient, SendsWhatItWasTold) {
  HttpHandlers handlers;
  handlers.request = [](const HttpRequest& request, const HttpRespond& respond) {
    HttpResponse response;
    response.status = 202;
    response.content_type = "text/plain";
    response.body = request.method + " " + request.path + " " + request.body + " " +
                    std::string(request.header("authorization")) + " " +
                    std::string(request.header("X-KEY"));
    response.headers.push_back({"Retry-After", "7"});
    respond(std::move(response));
  };
  TestServer server({}, handlers);
  HttpClientConfig config = to("http://" + server.address() + "/prefix/");
  config.bearer_token = "secret";
  HttpClient client(config);
  const HttpResponse response = client.request("PUT", "/x", "body", soon(), {{"X-Key", "k"}});
  EXPECT_EQ(response.status, 202);
  EXPECT_EQ(response.content_type, "text/plain");
  EXPECT_EQ(response.body, "PUT /prefix/x body Bearer secret k");
  EXPECT_EQ(response.header("retry-after"), "7");
}

TEST(HttpClient, SendsOnceMoreWhenItsConnectionWasClosed) {
  std::atomic<int> asked{0};
  HttpHandlers handlers;
  handlers.request = [&](const HttpRequest&, const HttpRespond& respond) {
    ++asked;
    respond({});
  };
  HttpServerConfig config;
  config.max_connections = 1;
  TestServer server(config, handlers);
  HttpClient client(to(server.address()));
  EXPECT_EQ(client.request("POST", "/", "1", soon()).status, 200);
  {
    const RawClient other(server.address());  // needs its place
    EXPECT_TRUE(eventually([&] {
      return server.thread().call([&] { return server.server().traffic().evicted; }) == 1;
    }));
  }
  EXPECT_EQ(client.request("POST", "/", "2", soon()).status, 200);
  EXPECT_EQ(asked, 2);
}

TEST(HttpClient, NobodyListens) {
  HttpClient client(to("127.0.0.1:1"));
  std::string message;
  EXPECT_EQ(code_of(client, soon(), &message), ErrorCode::kUnavailable);
  EXPECT_THAT(message, HasSubstr("cannot connect to 127.0.0.1:1"));
}

TEST(HttpClient, KeepsItsDeadline) {
  EventLoop loop;  // does not run: connections wait in the backlog
  const HttpServer server(loop, {}, {});
  HttpClient client(to(server.address()));
  EXPECT_EQ(code_of(client, Deadline::after(100ms)), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(code_of(client, Deadline::after(100ms)), ErrorCode::kDeadlineExceeded);
}

// Nobody can tell getaddrinfo() to end: with a server of names that is silent it takes half a
// minute. Here the name is looked up until the client has gone.
TEST(HttpClient, AndItsEndDoesNotWaitForANameThatIsLookedUp) {
  {
    HttpClient client(to(std::string("http://") + kSlowName + ":7300"));
    EXPECT_EQ(code_of(client, Deadline::after(100ms)), ErrorCode::kDeadlineExceeded);
  }
  slow_look_up.count_down();
}

TEST(HttpClient, ANameIsReachedByItsSecondAddressWhereTheFirstSwallowsPackets) {
  TestServer server({}, answers_nothing());
  const int port = parse_url(server.address()).port;
  const Swallower silent(port);
  HttpClient client(to(std::string(kTwoAddresses) + ":" + std::to_string(port)));
  EXPECT_EQ(client.request("GET", "/", "", soon()).status, 200);
}

TEST(HttpClient, ANameIsReachedByItsSecondAddressWhereNobodyListensAtTheFirst) {
  TestServer server({}, answers_nothing());
  const int port = parse_url(server.address()).port;
  HttpClient client(to(std::string(kTwoAddresses) + ":" + std::to_string(port)));
  EXPECT_EQ(client.request("GET", "/", "", soon()).status, 200);
}

TEST(HttpClient, RefusesWhatWouldEndItsLine) {
  HttpClientConfig config = to("127.0.0.1:1");
  HttpClient client(config);
  EXPECT_THROW((void)client.request("GET", "/a b", "", soon()), Error);
  EXPECT_THROW((void)client.request("GET", "/\r\nX: y", "", soon()), Error);
  EXPECT_THROW((void)client.request("GET", "/", "", soon(), {{"X", "a\r\nY: b"}}), Error);
  config.bearer_token = "read with its newline\n";
  HttpClient with_token(config);
  EXPECT_EQ(code_of(with_token, soon()), ErrorCode::kInvalidArgument);
}

TEST(HttpClient, ReadsTheRefusalOfAnUpload) {
  HttpServerConfig config;
  config.max_body_bytes = 1000;
  TestServer server(config, {});
  HttpClient client(to(server.address()));
  EXPECT_EQ(client.request("POST", "/", std::string(4'000'000, 'x'), soon()).status, 413);
}

TEST(HttpClient, AnswersThatAreWrong) {
  const struct {
    std::string answer;
    ErrorCode code;
  } cases[] = {
      {"SSH-2.0-OpenSSH_9.2\r\n", ErrorCode::kMalformedInput},
      {"HTTP/1.1 20 OK\r\n\r\n", ErrorCode::kMalformedInput},
      {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", ErrorCode::kMalformedInput},
      {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", ErrorCode::kUnavailable},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", ErrorCode::kTooLarge},
      {"", ErrorCode::kUnavailable},
      {"HTTP/1.1 200 OK\r\n\r\nto the end", ErrorCode::kOk},
  };
  for (const auto& [answer, code] : cases) {
    const RawServer server(answer);
    HttpClient client(to(server.address()));
    EXPECT_EQ(code_of(client, soon()), code) << answer;
  }
}

}  // namespace
}  // namespace tributary
