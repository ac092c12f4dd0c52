// The control plane's HTTP interface: what it refuses, and who may use it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/core/expect_error.h"
#include "tests/deploy/control/control_harness.h"
#include "tests/deploy/control/simulated_pool.h"

namespace tributary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const HttpHeader kJson{"Content-Type", "application/json"};

/// A token file for one test.
class TokenFile {
 public:
  explicit TokenFile(const std::string& content)
      : path_(std::filesystem::path(::testing::TempDir()) /
              (std::string("token_") +
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
  EXPECT_EQ(control.request("POST", "/v1/sequences", good).status, 503);  // no type, no pool
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
      control.request("POST", "/v1/sequences", std::string(100'000, ' ') + good, {kJson});
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
  EXPECT_EQ(code_with([](auto& o) { o.pool_timeout_ms = 10; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.max_connections = 0; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.tls_key = "key.pem"; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_with([](auto& o) { o.token_file = "/does/not/exist"; }), ErrorCode::kIo);
  EXPECT_EQ(code_with([](auto& o) { o.listen = "nowhere"; }), ErrorCode::kInvalidArgument);
}

TEST(ControlHttp, PagesOfOtherSitesMayNotAct) {
  const ControlHarness control;
  const HttpHeader other{"Origin", "http://example.org"};
  const HttpHeader own{"Origin", "http://" + control.address()};
  EXPECT_EQ(control.request("POST", "/v1/pools/a/drain", "", {other}).status, 403);
  EXPECT_EQ(control.request("POST", "/v1/pools/a/drain", "", {own}).status, 404);
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
  EXPECT_EQ(worker["address"], "127.0.0.1:5001");
  EXPECT_GE(worker["heartbeat_age_ms"], 10);
}

}  // namespace
}  // namespace tributary
