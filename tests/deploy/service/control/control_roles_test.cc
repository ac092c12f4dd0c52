// The permissions of the three roles at a control plane, and the data that nobody is shown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "deploy/service/control/roles.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"

namespace tributary {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A token of each role, and of all.
class ControlRoles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) /
        (std::string("roles_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::string file(const std::string& role) const {
    const std::filesystem::path path = folder_ / role;
    std::ofstream(path) << token(role) << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path.string();
  }
  [[nodiscard]] static std::string token(const std::string& role) {
    return role + "-0123456789abcdef";
  }
  [[nodiscard]] static HttpHeader shown(const std::string& role) {
    return {"Authorization", "Bearer " + token(role)};
  }
  [[nodiscard]] ControlOptions options() const {
    ControlOptions options = ControlHarness::quick_options();
    options.token_file = file("all");
    options.client_token_file = file("client");
    options.pool_token_file = file("pool");
    options.operator_token_file = file("operator");
    return options;
  }

 private:
  std::filesystem::path folder_;
};

TEST_F(ControlRoles, EachDoesItsOwnAlone) {
  const ControlHarness control(options());
  const std::map<std::string, std::pair<std::string, std::string>> owners = {
      {"GET /metrics", {"operator", "200"}},
      {"GET /v1/cluster", {"operator", "200"}},
      {"POST /v1/pools/a/drain", {"operator", "404"}},
      {"DELETE /v1/pools/a", {"operator", "404"}},
      {"POST /v1/pools/a/resume", {"operator", "404"}},
      {"POST /v1/pools/a/workers/0/drain", {"operator", "404"}},
      {"POST /v1/pools/a/workers/0/resume", {"operator", "404"}},
      {"GET /v1/workers", {"client", "200"}},
      {"GET /v1/sequences/1", {"client", "404"}},
      {"DELETE /v1/sequences/1", {"client", "404"}},
      {"POST /v1/sequences", {"client", "400"}},
      {"GET /v1/pools/connect", {"pool", "426"}}};
  for (const auto& [what, owner] : owners) {
    const std::string method = what.substr(0, what.find(' '));
    const std::string path = what.substr(what.find(' ') + 1);
    for (const char* role : {"client", "pool", "operator", "all", "nobody"}) {
      SCOPED_TRACE(what + " as " + role);
      const bool may = role == owner.first || std::string(role) == "all";
      const HttpResponse response = control.request(method, path, "", {shown(role)});
      const std::string refused = std::string(role) == "nobody" ? "401" : "403";
      EXPECT_EQ(std::to_string(response.status), may ? owner.second : refused);
      if (may) continue;
      EXPECT_EQ(code_of_body(response), "permission_denied");
    }
  }
  EXPECT_EQ(control.request("GET", "/nothing", "", {shown("pool")}).status, 404);
}

TEST_F(ControlRoles, APoolAloneRegisters) {
  const ControlHarness control(options());
  for (const char* role : {"client", "operator", "nobody"}) {
    SimulatedPoolConfig config = pool_of(control);
    config.token = token(role);
    SimulatedPool pool(config);
    EXPECT_EQ(pool.wait_registered().code, ErrorCode::kPermissionDenied) << role;
  }
  SimulatedPoolConfig config = pool_of(control);
  config.token = token("pool");
  SimulatedPool pool(config);
  EXPECT_EQ(pool.wait_registered().code, ErrorCode::kOk);
}

TEST_F(ControlRoles, ARoleWithoutATokenIsNobodyWhereAnotherHasOne) {
  ControlOptions some = ControlHarness::quick_options();
  some.client_token_file = file("client");
  const ControlHarness control(some);
  EXPECT_EQ(control.request("GET", "/v1/sequences/1", "", {shown("client")}).status, 404);
  EXPECT_EQ(control.request("GET", "/v1/cluster", "", {shown("client")}).status, 403);
  EXPECT_EQ(control.request("GET", "/v1/cluster").status, 401);
  some.listen = "0.0.0.0:0";  // it has a token
  EXPECT_TRUE(has_tokens(some));
  some.pool_token_file = some.client_token_file;
  EXPECT_EQ(code_of([&] { const RoleTokens tokens(some); }), ErrorCode::kInvalidArgument);
}

/// Who shows a pool's run is that pool: it takes its name, its sequences and what clients ask.
TEST_F(ControlRoles, APoolsRunIsShownToNobody) {
  const ControlHarness control;
  SimulatedPoolConfig config = pool_of(control);
  config.run = "5ecre7";
  SimulatedPool pool(config);
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  for (const char* path : {"/v1/cluster", "/metrics"}) {
    EXPECT_THAT(control.request("GET", path).body, Not(HasSubstr("5ecre7"))) << path;
  }
  const std::string name = control.cluster()["pools"][0]["run"];
  EXPECT_EQ(name.size(), 16U);
  config.run = name;  // what is shown opens nothing
  SimulatedPool other(config);
  const Registered refused = other.wait_registered();
  EXPECT_EQ(refused.code, ErrorCode::kAlreadyExists);
  EXPECT_THAT(refused.message, Not(HasSubstr("5ecre7")));
}

}  // namespace
}  // namespace tributary
