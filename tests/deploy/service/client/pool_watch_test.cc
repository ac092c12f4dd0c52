// Calls to a worker that does not answer, cannot be reached or is only full, with each answer of
// its control plane.
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

TEST_F(PoolWatchTest, APoolThatIsOnlyOutOfSightIsWaitedFor) {
  std::atomic<bool> cut = true;
  std::atomic<int> questions = 0;
  control_.answer = [&](const HttpRequest&) {
    if (++questions > 3) cut = false;
    return test::error_response(503, "unavailable");
  };
  worker_.on_hello = [&](const wire::Hello& hello) -> std::optional<wire::Welcome> {
    if (cut) {
      worker_.disconnect();
      return std::nullopt;
    }
    wire::Welcome welcome;
    welcome.shape = hello.shape;
    return welcome;
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  client_->attend(std::span(&one, 1), 0, Deadline::after(kLimit));
  EXPECT_GT(questions, 3);
  client_.reset();  // it may still ask
}

TEST_F(PoolWatchTest, APoolThatOneOfTheTwoStillHasIsNotGivenUp) {
  // First the control plane knows the pool, whose worker is busy; then it is cut off from it.
  std::atomic<int> questions = 0;
  std::atomic<std::uint64_t> asked = 0;
  control_.answer = [&](const HttpRequest&) {
    if (++questions > 1) return test::error_response(410, "pool_lost");
    HttpResponse response;
    response.body = to_json(test::sample_answer());
    return response;
  };
  worker_.on_round = [&](const wire::LayerRequest& round, const auto&) {
    asked = round.request;
    return std::nullopt;
  };
  worker_.on_control = [&](const wire::Control&) -> std::optional<wire::ControlReply> {
    if (questions < 1) return std::nullopt;
    if (questions >= 2) {  // it has been judged twice
      test::FakeWorker::RoundAnswer late;
      late.reply.request = asked;
      late.reply.items = {ErrorCode::kOk};
      late.payload.resize(test::kSmallOutput * sizeof(float));
      worker_.send(late);
    }
    return wire::ControlReply{.request = 0, .items = {{ErrorCode::kNotFound, 0, 0}}, .message = {}};
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  client_->attend(std::span(&one, 1), 0, Deadline::after(kLimit));
  EXPECT_THAT(output, testing::Each(0));
  EXPECT_GE(questions, 2);
  client_.reset();  // it may still ask
}

TEST_F(PoolWatchTest, AWorkerThatIsOnlyFullIsUnavailable) {
  struct Nobody final : TransportHandler {
    std::optional<Landing> on_message(PeerId /*peer*/, std::uint16_t /*type*/,
                                      std::span<const std::byte> /*header*/,
                                      std::size_t /*payload_bytes*/) override {
      return std::nullopt;
    }
    void on_disconnect(PeerId /*peer*/, const Status& /*reason*/) override {}
  } nobody;
  const auto full =
      make_data_transport()({.listen = "tcp://127.0.0.1:0",
                             .max_connections = 0,
                             .secret_of = [](std::uint64_t id) { return test::token_of(id); }},
                            nobody);
  SequenceHandle a = sequence();
  a.addresses = {full->address()};
  Status status;
  for (const auto patience : test::kPatiences) {
    status = status_of([&] { client_->truncate(a, 100, Deadline::after(5 * patience)); });
    if (status.code() != ErrorCode::kDeadlineExceeded) break;
  }
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr("tried again until the deadline"));
}

}  // namespace
}  // namespace tributary
