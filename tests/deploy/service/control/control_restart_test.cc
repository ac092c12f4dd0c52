// Clients of a control plane that has just been restarted: a sequence that ended meanwhile is not
// an error, and one that may still come back is waited for.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>

#include "comm/http/http_server.h"
#include "core/base/error.h"
#include "deploy/service/client/tier_api.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"

namespace tributary {
namespace {

/// A sequence of a control plane that ran long ago.
constexpr SequenceId kEarlier = (SequenceId{1} << 32) | 5;

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

HttpClientConfig config_of(const std::string& address) {
  return {.url = parse_url("http://" + address), .bearer_token = {}, .certificate_authority = {}};
}

/// A control plane that answers its first request with `unavailable`, and ends.
std::string address_of_one_that_ends(const std::function<void(const std::string&)>& ask) {
  EventLoop loop;
  HttpServerConfig config;
  const HttpServer server(loop, config,
                          {.request =
                               [&](const HttpRequest&, const HttpRespond& respond) {
                                 respond(error_response(503, "unavailable", "ending"));
                                 loop.post([&] { loop.stop(); });
                               },
                           .may_upgrade = {},
                           .upgraded = {}});
  ask(server.address());
  loop.run();
  return server.address();
}

TEST(ControlRestart, AClientsPatienceOutlastsTheSettling) {
  std::unique_ptr<TierApi> api;
  std::future<void> freed;
  ControlOptions options = ControlHarness::quick_options();
  options.listen = address_of_one_that_ends([&](const std::string& address) {
    api = std::make_unique<TierApi>(config_of(address));
    freed = std::async(std::launch::async, [&] { api->free(kEarlier, "gone", soon()); });
  });
  // The client has been refused once and goes on trying, but no pool will ever register.
  const ControlHarness control(options);
  EXPECT_EQ(code_of([&] { freed.get(); }), ErrorCode::kNotFound);
}

TEST(ControlRestart, APoolThatIsBackAnswersForWhatItNoLongerHolds) {
  const ControlHarness control;
  const std::string path = path_of(kEarlier);
  SimulatedPool pool(pool_of(control, "a"));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  EXPECT_EQ(control.request("DELETE", path + "?pool=a").status, 200);
  for (const char* query : {"?pool=", "?pool=a/b", "?pool=a&pool=b", "?name=a", "?pool"}) {
    EXPECT_EQ(control.request("DELETE", path + query).status, 400) << query;
  }
  TierApi api(config_of(control.address()));
  EXPECT_NO_THROW(api.free(kEarlier, "a", soon()));
}

}  // namespace
}  // namespace tributary
