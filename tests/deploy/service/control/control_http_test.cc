// The refusals of the control plane's HTTP interface, and its authorised users.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "deploy/service/control/bearer_auth.h"
#include "deploy/service/protocol/token_file.h"
#include "tests/comm/http/raw_client.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"

namespace tributary {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const HttpHeader kJson{"Content-Type", "application/json"};

/// A token file for one test: others may run the same one beside us.
class TokenFile {
 public:
  explicit TokenFile(const std::string& content)
      : path_(std::filesystem::path(::testing::TempDir()) /
              fmt::format("token_{}_{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::ofstream(path_) << content;
  }
  ~TokenFile() { std::filesystem::remove(path_); }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(ControlHttp, IsAliveAndSaysWhatItDoesNotKnow) {
  const ControlHarness control;
  EXPECT_EQ(control.request("GET", "/healthz").status, 200);
  EXPECT_EQ(control.request("GET", "/").status, 200);
  EXPECT_THAT(control.request("GET", "/").body, HasSubstr("<html"));
  EXPECT_EQ(control.request("GET", "/nothing").status, 404);
  EXPECT_EQ(control.request("GET", "/v1/sequences/").status, 404);
  EXPECT_EQ(control.request("GET", "/v1/sequences/1/2").status, 404);
  EXPECT_EQ(code_of_body(control.request("GET", "/nothing")), "not_found");
  const HttpResponse wrong = control.request("PUT", "/v1/sequences/7");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("Allow"), "GET, DELETE");
  EXPECT_EQ(control.request("GET", "/v1/pools/connect").status, 426);
}

TEST(ControlHttp, BodiesAreStrict) {
  const ControlHarness control;
  for (const char* body :
       {"", "{", "[]", "null", R"({"prompt_tokens":1})",
        R"({"prompt_tokens":1,"max_new_tokens":1,"x":1})",
        R"({"prompt_tokens":-1,"max_new_tokens":1})", R"({"prompt_tokens":1.5,"max_new_tokens":1})",
        R"({"prompt_tokens":"1","max_new_tokens":1})", R"({"prompt_tokens":0,"max_new_tokens":0})",
        R"({"prompt_tokens":1,"max_new_tokens":1,"spread":"none"})",
        R"({"prompt_tokens":1,"prompt_tokens":2,"max_new_tokens":1})",
        R"({"prompt_tokens":99999999999999999999,"max_new_tokens":1})"}) {
    const HttpResponse response = control.request("POST", "/v1/sequences", body, {kJson});
    EXPECT_EQ(response.status, 400) << body << ": " << response.body;
    EXPECT_EQ(code_of_body(response), "malformed_input") << body;
  }
  const std::string good = R"({"prompt_tokens":1,"max_new_tokens":1,"spread":"all"})";
  EXPECT_EQ(control.request("POST", "/v1/sequences", good, {{"Content-Type", "text/plain"}}).status,
            415);
  // Without Content-Type the request is accepted, but there is no pool.
  EXPECT_EQ(control.request("POST", "/v1/sequences", good).status, 503);
  EXPECT_EQ(control
                .request("POST", "/v1/sequences", good,
                         {{"Content-Type", "Application/JSON; charset=utf-8"}})
                .status,
            503);
  EXPECT_EQ(control
                .request("POST", "/v1/sequences", good,
                         {kJson, {"Idempotency-Key", std::string(200, 'k')}})
                .status,
            400);
  const HttpResponse large =
      control.request("POST", "/v1/sequences", std::string(400'000, ' ') + good, {kJson});
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(code_of_body(large), "too_large");
}

TEST(ControlHttp, NeedsTheToken) {
  const TokenFile file("  0123456789abcdef-token \n");
  ControlOptions options = ControlHarness::quick_options();
  options.token_file = file.path();
  const ControlHarness control(options);
  const HttpHeader right{"Authorization", "Bearer 0123456789abcdef-token"};
  for (const char* path : {"/", "/healthz"}) EXPECT_EQ(control.request("GET", path).status, 200);
  EXPECT_EQ(control.request("GET", "/readyz").status, 503);
  for (const char* path :
       {"/metrics", "/v1/cluster", "/v1/sequences/1", "/nothing", "/v1/pools/connect"}) {
    const HttpResponse none = control.request("GET", path);
    EXPECT_EQ(none.status, 401) << path;
    EXPECT_EQ(code_of_body(none), "permission_denied");
    EXPECT_THAT(std::string(none.header("WWW-Authenticate")), HasSubstr("Bearer"));
    for (const char* wrong : {"Bearer 0123456789abcdef-tokeN", "Bearer ", "Bearer 0123",
                              "Basic 0123456789abcdef-token", "0123456789abcdef-token"}) {
      EXPECT_EQ(control.request("GET", path, "", {{"Authorization", wrong}}).status, 401) << wrong;
    }
  }
  EXPECT_EQ(control.request("GET", "/v1/cluster", "", {right}).status, 200);
  EXPECT_EQ(control.request("GET", "/nothing", "", {right}).status, 404);

  SimulatedPoolConfig config;
  config.control = control.address();
  {
    SimulatedPool pool(config);
    EXPECT_EQ(pool.wait_registered().code, ErrorCode::kPermissionDenied);
  }
  config.token = "0123456789abcdef-token";
  SimulatedPool pool(config);
  EXPECT_EQ(pool.wait_registered().code, ErrorCode::kOk);
}

TEST(ControlHttp, WarnsOfATokenThatEverybodyCanRead) {
  using std::filesystem::perms;
  const TokenFile file("0123456789abcdef-token");
  for (const perms mode : {perms::owner_read, perms::owner_read | perms::group_read}) {
    std::filesystem::permissions(file.path(), mode);
    ::testing::internal::CaptureStderr();
    (void)read_token_file(file.path());
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
  std::filesystem::permissions(file.path(), perms::owner_read | perms::others_read);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(read_token_file(file.path()), "0123456789abcdef-token");
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("mode 0404, every user"));
}

TEST(ControlHttp, WithoutATokenListensOnLoopbackAlone) {
  ControlOptions options = ControlHarness::quick_options();
  options.listen = "0.0.0.0:0";
  const auto start = [&] { const ControlHarness control(options); };
  EXPECT_EQ(code_of(start), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_of(start), HasSubstr("--token-file"));
  const TokenFile file("0123456789abcdef");
  options.token_file = file.path();
  EXPECT_EQ(code_of(start), ErrorCode::kOk);
}

TEST(ControlHttp, RefusesBadOptions) {
  const auto code_with = [](const std::function<void(ControlOptions&)>& change) {
    ControlOptions options = ControlHarness::quick_options();
    change(options);
    return code_of([&] { const ControlHarness control(options); });
  };
  EXPECT_EQ(code_with([](auto& o) { o.failure_timeout_ms = 10; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.max_connections = 0; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.tls_key = "key.pem"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.token_file = "/does/not/exist"; }), ErrorCode::kIo);
  EXPECT_EQ(code_with([](auto& o) { o.listen = "nowhere"; }), ErrorCode::kInvalidArgument);
}

/// Open, silent sockets, more than the control plane takes.
std::vector<std::unique_ptr<RawClient>> crowd(const std::string& address, int size) {
  std::vector<std::unique_ptr<RawClient>> sockets;
  for (int i = 0; i < size; ++i) sockets.push_back(std::make_unique<RawClient>(address));
  return sockets;
}

TEST(ControlHttp, ACrowdOfStrangersKeepsNobodyOut) {
  const TokenFile file("0123456789abcdef-token");
  ControlOptions options = ControlHarness::quick_options();
  options.token_file = file.path();
  options.max_connections = 4;
  const ControlHarness control(options);
  const HttpHeader right{"Authorization", "Bearer 0123456789abcdef-token"};
  const auto before = crowd(control.address(), 16);
  EXPECT_EQ(control.request("GET", "/healthz").status, 200);
  SimulatedPoolConfig config = pool_of(control);
  config.token = "0123456789abcdef-token";
  SimulatedPool pool(config);
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const auto after = crowd(control.address(), 16);
  EXPECT_EQ(control.request("GET", "/v1/cluster").status, 401);
  const json cluster = json::parse(control.request("GET", "/v1/cluster", "", {right}).body);
  EXPECT_EQ(cluster["pools"][0]["state"], "serving");
  const std::string metrics = control.request("GET", "/metrics", "", {right}).body;
  EXPECT_THAT(metrics, HasSubstr("tributary_pools_lost_total 0"));
  EXPECT_THAT(metrics, HasSubstr("tributary_http_requests_total{code=\"101\"} 1"));
  EXPECT_THAT(metrics, HasSubstr("tributary_http_requests_total{code=\"401\"} 1"));
  EXPECT_THAT(metrics, ContainsRegex("connections_closed_total.reason=\"evicted\". [1-9]"));
}

TEST(ControlHttp, HealthChecksHaveADoorOfTheirOwn) {
  const TokenFile file("0123456789abcdef-token");
  ControlOptions options = ControlHarness::quick_options();
  options.token_file = file.path();
  options.max_connections = 1;
  options.health_listen = "127.0.0.1:0";
  const ControlHarness control(options);
  // The only connection there is, and its holder is trusted.
  const RawClient holder(control.address());
  holder.send(
      "GET /v1/cluster HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer "
      "0123456789abcdef-token\r\n\r\n");
  EXPECT_THAT(holder.read_until("pools"), HasSubstr("200 OK"));
  EXPECT_EQ(code_of([&] { (void)control.request("GET", "/healthz"); }), ErrorCode::kUnavailable);
  HttpClientConfig config;
  config.url = parse_url("http://" + control.health_address());
  HttpClient client(config);
  const auto status_of_path = [&](const std::string& path) {
    return client.request("GET", path, "", Deadline::after(std::chrono::seconds(20))).status;
  };
  EXPECT_EQ(status_of_path("/healthz"), 200);
  EXPECT_EQ(status_of_path("/readyz"), 503);
  for (const char* path : {"/", "/metrics", "/v1/cluster"}) EXPECT_EQ(status_of_path(path), 404);
}

TEST(ControlHttp, PagesOfOtherSitesMayNotAct) {
  const ControlHarness control;
  const HttpHeader other{"Origin", "http://example.org"};
  const HttpHeader own{"Origin", "http://" + control.address()};
  EXPECT_EQ(control.request("POST", "/v1/pools/a/drain", "", {other}).status, 403);
  EXPECT_EQ(control.request("POST", "/v1/pools/a/drain", "", {own}).status, 404);
}

/// DNS rebinding: the name of a site that resolves to 127.0.0.1 for its second request.
TEST(ControlHttp, WithoutATokenAnswersAsLocalhostAlone) {
  EXPECT_TRUE(is_local_host(""));
  for (const char* host : {"localhost", "LocalHost:7300", "127.0.0.1", "127.0.0.1:1", "127.1.2.3",
                           "[::1]", "[::1]:7300"}) {
    EXPECT_TRUE(is_local_host(host)) << host;
  }
  for (const char* host :
       {"example.org", "example.org:7300", "127.0.0.1.example.org", "127.org", "10.0.0.1",
        "localhost.example.org", "[::2]", "[::1].org", "a@localhost"}) {
    EXPECT_FALSE(is_local_host(host)) << host;
  }
  const ControlHarness control;
  const std::string upgrade =
      "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n";
  for (const std::string& request :
       {std::string("GET /v1/cluster"), std::string("GET /"), std::string("POST /v1/pools/a/drain"),
        std::string("GET /v1/pools/connect")}) {
    const RawClient stranger(control.address());
    stranger.send(request + " HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(stranger.read_all(), StartsWith("HTTP/1.1 421 ")) << request;
  }
  const RawClient pool(control.address());
  pool.send("GET /v1/pools/connect HTTP/1.1\r\nHost: example.org\r\n" + upgrade + "\r\n");
  EXPECT_THAT(pool.read_until("\r\n\r\n"), StartsWith("HTTP/1.1 421 "));
  const TokenFile file("0123456789abcdef-token");
  ControlOptions options = ControlHarness::quick_options();
  options.token_file = file.path();
  const ControlHarness guarded(options);  // a page of another site does not have the token
  const RawClient holder(guarded.address());
  holder.send(
      "GET /v1/cluster HTTP/1.1\r\nHost: tier.example.org\r\nConnection: close\r\n"
      "Authorization: Bearer 0123456789abcdef-token\r\n\r\n");
  EXPECT_THAT(holder.read_all(), StartsWith("HTTP/1.1 200 "));
}

TEST(ControlHttp, ThePageIsNotFramed) {
  const ControlHarness control;
  EXPECT_THAT(std::string(control.request("GET", "/").header("Content-Security-Policy")),
              HasSubstr("frame-ancestors 'none'"));
}

TEST(ControlHttp, ReportsTheCluster) {
  const ControlHarness control;
  EXPECT_TRUE(control.cluster()["pools"].empty());
  SimulatedPoolConfig config;
  config.control = control.address();
  SimulatedPool pool(config);
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  ASSERT_EQ(control.admit(640, 0).status, 201);
  ASSERT_TRUE(control.wait_for([](const json& cluster) {
    return !cluster["pools"][0]["metrics"].is_null() &&
           cluster["pools"][0]["workers"][0]["pages"]["used"] == 5;
  }));
  const json cluster = control.cluster();
  EXPECT_EQ(cluster["ready"], true);
  EXPECT_EQ(cluster["sequences"], 1);
  EXPECT_EQ(cluster["admissions"]["admitted"], 1);
  EXPECT_EQ(cluster["histogram_bounds"]["seconds"].size() + 1,
            cluster["pools"][0]["metrics"]["step_seconds"]["counts"].size());
  const json& worker = cluster["pools"][0]["workers"][1];
  EXPECT_EQ(worker["rank"], 1);
  EXPECT_EQ(worker["state"], "serving");
  EXPECT_EQ(worker["pages"]["total"], 64);
  EXPECT_EQ(worker["address"], "tcp://127.0.0.1:5001");
  EXPECT_GE(worker["heartbeat_age_ms"], 10);
  EXPECT_EQ(json::parse(control.request("GET", "/v1/workers").body),
            json({{"workers", {"tcp://127.0.0.1:5000", "tcp://127.0.0.1:5001"}}}));
}

}  // namespace
}  // namespace tributary
