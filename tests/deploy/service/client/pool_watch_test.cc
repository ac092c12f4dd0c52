// Calls to a worker that does not answer or cannot be reached, whose pool is lost: the watch's
// thread and a real control plane. What is decided is tested in simulated time
// (worker_connections_test.cc).
#include "deploy/service/client/pool_watch.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <vector>

#include "deploy/service/transport/data_transport.h"
#include "tests/deploy/service/client/client_fixture.h"
#include "tests/deploy/service/client/fake_control.h"

namespace tributary {
namespace {

/// Less than a call's own deadline, and much more than the watch needs.
constexpr auto kLimit = std::chrono::seconds(20);

class PoolWatchTest : public test::ClientFixture {
 protected:
  void SetUp() override {
    TierClientConfig config;
    config.url = control_.url();
    make_client(config);
  }

  void expect_lost(const std::function<void(Deadline)>& call) {
    control_.answer = [](const HttpRequest&) { return test::error_response(410, "pool_lost"); };
    const auto begin = std::chrono::steady_clock::now();
    test::expect_error(ErrorCode::kPoolLost, "the control plane says: why",
                       [&] { call(Deadline::after(kLimit)); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kLimit);
  }

  test::FakeControl control_;
};

TEST_F(PoolWatchTest, AStoppedPoolEndsTheCallsThatWaitForIt) {
  worker_.on_round = [](const auto&, const auto&) { return std::nullopt; };
  worker_.on_control = [](const auto&) { return std::nullopt; };
  expect_lost([&](Deadline deadline) {
    SequenceHandle a = sequence();
    std::vector<float> output;
    const LayerItem one = item(a, output);
    client_->attend(std::span(&one, 1), 0, deadline);
  });
}

TEST_F(PoolWatchTest, AStoppedPoolEndsTheCallsThatItHasNotGreeted) {
  worker_.on_hello = [](const auto&) { return std::nullopt; };
  expect_lost([&](Deadline deadline) {
    SequenceHandle a = sequence();
    client_->truncate(a, 100, deadline);
  });
}

TEST_F(PoolWatchTest, APoolWhoseWorkerIsGoneEndsCallsAtOnce) {
  worker_.on_round = [&](const auto&, const auto&) {
    worker_.disconnect();
    return std::nullopt;
  };
  worker_.on_hello = [&, first = true](const wire::Hello& hello) mutable {
    wire::Welcome welcome;
    welcome.shape = hello.shape;
    if (!std::exchange(first, false)) {  // its port is closed since
      worker_.disconnect();
      return std::optional<wire::Welcome>();
    }
    return std::optional(welcome);
  };
  for (const char* code : {"pool_lost", "not_found"}) {
    control_.answer = [&](const HttpRequest&) { return test::error_response(410, code); };
    SequenceHandle a = sequence();
    std::vector<float> output;
    const LayerItem one = item(a, output);
    test::expect_error(ErrorCode::kPoolLost, "it cannot be reached, and the control plane says",
                       [&] { client_->attend(std::span(&one, 1), 0, Deadline::after(kLimit)); });
  }
}

}  // namespace
}  // namespace tributary
