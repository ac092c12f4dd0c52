// Registration, loss, restart and draining, with simulated pools over real sockets.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "comm/http/http_server.h"
#include "comm/http/websocket.h"
#include "core/base/deadline.h"
#include "deploy/service/protocol/admission.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ControlPools, AnEndedConnectionLosesThePoolAtOnce) {
  const ControlHarness control;
  auto a = std::make_unique<SimulatedPool>(pool_of(control, "a"));
  SimulatedPool b(pool_of(control, "b"));
  ASSERT_EQ(a->wait_registered().code, ErrorCode::kOk);
  ASSERT_EQ(b.wait_registered().code, ErrorCode::kOk);
  std::map<std::string, SequenceId> ids;
  for (int i = 0; i < 2; ++i) {
    const SequenceHandle answer = parse_sequence_handle(control.admit(10, 10).body);
    ids[answer.pool] = answer.id;
  }
  ASSERT_EQ(ids.size(), 2U);
  a.reset();
  ASSERT_TRUE(control.wait_for_state("a", "lost"));
  const HttpResponse lost = control.request("GET", path_of(ids["a"]));
  EXPECT_EQ(lost.status, 410);
  EXPECT_EQ(code_of_body(lost), "pool_lost");
  EXPECT_EQ(control.request("DELETE", path_of(ids["a"])).status, 200);
  EXPECT_EQ(control.request("GET", path_of(ids["b"])).status, 200);
  const HttpResponse next = control.admit(10, 10);
  ASSERT_EQ(next.status, 201);
  EXPECT_EQ(parse_sequence_handle(next.body).pool, "b");
}

/// Silent for longer than a pool that gets requests may be, and than a WebSocket may by default.
TEST(ControlPools, APoolThatIsHeldUpIsWaitedFor) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  std::promise<void> resumed;
  const auto held = HttpServerConfig().websocket_idle_timeout + std::chrono::milliseconds(1'500);
  pool.hold_up([&] {
    std::this_thread::sleep_for(held);
    resumed.set_value();
  });
  ASSERT_TRUE(control.wait_for_state("a", "lost"));
  const HttpResponse forget = control.request("DELETE", "/v1/pools/a");
  EXPECT_EQ(forget.status, 409);
  EXPECT_THAT(forget.body, HasSubstr("its 1 sequences wait for it"));
  resumed.get_future().wait();
  SimulatedPoolConfig config = pool_of(control);
  config.sequences = pool.sequences();
  SimulatedPool again(config);
  ASSERT_EQ(again.wait_registered().code, ErrorCode::kOk);
  EXPECT_EQ(control.request("GET", path_of(id)).status, 200);
}

TEST(ControlPools, TheSameRunTakesItsSequencesUpAgain) {
  const ControlHarness control;
  auto pool = std::make_unique<SimulatedPool>(pool_of(control));
  ASSERT_EQ(pool->wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  SimulatedPoolConfig config = pool_of(control);
  config.sequences = pool->sequences();
  // Even before the control plane has seen the old connection end.
  SimulatedPool again(config);
  EXPECT_EQ(again.wait_registered().code, ErrorCode::kOk);
  EXPECT_EQ(control.request("GET", path_of(id)).status, 200);
  pool.reset();
  EXPECT_EQ(control.request("GET", path_of(id)).status, 200);
  EXPECT_EQ(control.cluster()["pools"][0]["state"], "serving");
}

TEST(ControlPools, ARestartedControlPlaneLearnsWhatRuns) {
  auto control = std::make_unique<ControlHarness>();
  ControlOptions options = ControlHarness::quick_options();
  options.listen = control->address();
  SimulatedPoolConfig config = pool_of(*control);
  auto pool = std::make_unique<SimulatedPool>(config);
  const Registered before = pool->wait_registered();
  ASSERT_EQ(before.code, ErrorCode::kOk);
  const HttpResponse first = control->admit(10, 10, "key");
  ASSERT_EQ(first.status, 201);
  const SequenceId id = parse_sequence_handle(first.body).id;
  config.sequences = pool->sequences();
  config.last_incarnation = before.incarnation + 1000;  // a clock that was set back
  control.reset();
  control = std::make_unique<ControlHarness>(options);
  pool = std::make_unique<SimulatedPool>(config);
  const Registered after = pool->wait_registered();
  ASSERT_EQ(after.code, ErrorCode::kOk) << after.message;
  EXPECT_GT(after.incarnation, config.last_incarnation);
  EXPECT_EQ(control->request("GET", path_of(id)).status, 200);
  const HttpResponse again = control->admit(10, 10, "key");
  ASSERT_EQ(again.status, 201) << again.body;
  EXPECT_EQ(again.body, first.body);
  EXPECT_EQ(control->admit(99, 10, "key").status, 409);
  const SequenceHandle fresh = parse_sequence_handle(control->admit(10, 10).body);
  EXPECT_GT(fresh.id, id);
}

TEST(ControlPools, OfAnotherShapeAreRefused) {
  const ControlHarness control;
  SimulatedPool first(pool_of(control));
  ASSERT_EQ(first.wait_registered().code, ErrorCode::kOk);
  SimulatedPoolConfig config = pool_of(control, "b");
  config.shape = sample_shape();
  config.shape.layers = 61;
  SimulatedPool second(config);
  const Registered refused = second.wait_registered();
  EXPECT_EQ(refused.code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message, HasSubstr("layers is 61, but pool a of this tier has 27"));

  // It tries again and again, and the log says so once.
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    SimulatedPool again(config);
    EXPECT_EQ(again.wait_registered().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("was refused")));
}

TEST(ControlPools, OfAnotherProtocolAreRefused) {
  const ControlHarness control;
  SimulatedPoolConfig config = pool_of(control);
  config.protocol = kPoolProtocol + 1;
  SimulatedPool pool(config);
  EXPECT_EQ(pool.wait_registered().code, ErrorCode::kUnsupported);
}

std::vector<SequenceInfo> many_sequences(std::size_t count) {
  std::vector<SequenceInfo> sequences(count, sample_sequence());
  for (std::size_t i = 0; i < count; ++i) {
    sequences[i].id = (SequenceId{1} << 32) + i;
    sequences[i].idempotency_key.clear();
  }
  return sequences;
}

/// 13 MiB once held the loop for 0.4 to 0.8 s, and left 120 MiB behind.
TEST(ControlPools, ThatBringManySequencesRegisterInPieces) {
  const ControlHarness control;
  SimulatedPoolConfig config = pool_of(control);
  config.workers = 4;
  config.sequences = many_sequences(6000);
  SimulatedPool pool(config);
  EXPECT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  EXPECT_EQ(control.cluster()["pools"][0]["sequences"], 6000);
}

/// The first answer to messages on a connection of their own; empty where it was closed.
std::string answer_to(const ControlHarness& control, const std::vector<FromPool>& words) {
  EventLoop loop;
  std::shared_ptr<WebSocket> socket;
  std::string answer;
  WebSocketClientConfig client;
  client.url = parse_url("http://" + control.address() + "/v1/pools/connect");
  connect_websocket(loop, client, [&](std::shared_ptr<WebSocket> connected, const Status& status) {
    ASSERT_TRUE(connected) << status.message();
    socket = std::move(connected);
    const auto hear = [&](std::string_view text) {
      answer = text;
      loop.stop();
    };
    socket->set_handlers({.message = hear, .closed = [&](const Status&) { loop.stop(); }});
    for (const FromPool& word : words) socket->send(to_json(word));
  });
  loop.run();
  return answer;
}

TEST(ControlPools, OfWhichAPieceIsMissingAreNotThereYet) {
  const ControlHarness control;
  RegisterPool about = std::get<RegisterPool>(samples_from_pool()[0]);
  about.sequences = many_sequences(4000);
  std::vector<FromPool> words = registration(about);
  ASSERT_GT(words.size(), 2U);
  words.back() = samples_from_pool()[1];  // a heartbeat
  EXPECT_THAT(answer_to(control, words), HasSubstr("a pool's first message is its registration"));
  EXPECT_TRUE(control.cluster()["pools"].empty());
}

TEST(ControlPools, ARegistrationInOneLargeMessageIsRefusedUnread) {
  const ControlHarness control;
  RegisterPool about = std::get<RegisterPool>(samples_from_pool()[0]);
  about.sequences = many_sequences(6000);
  about.more = 0;
  EXPECT_THAT(answer_to(control, {about}), HasSubstr("it may have 1048576"));
  // A piece of nobody, and one of workers that are not there.
  EXPECT_THAT(answer_to(control, {MoreSequences{}}), HasSubstr("outside of a registration"));
  about.sequences.clear();
  about.more = 1;
  MoreSequences foreign{many_sequences(1)};
  foreign.sequences[0].home = 2;
  EXPECT_THAT(answer_to(control, {about, foreign}), HasSubstr("beyond the pool's 2"));
}

TEST(ControlPools, ThatSendMuchAfterTheirRegistrationAreLost) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  pool.send(std::string(std::size_t{2} << 20, ' '));
  ASSERT_TRUE(control.wait_for_state("a", "lost"));
  EXPECT_THAT(control.cluster()["pools"][0]["lost_because"].get<std::string>(),
              HasSubstr("a message of 2097152 bytes"));
}

TEST(ControlPools, ThatSendNonsenseAreLost) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  pool.send("{\"type\":\"nonsense\"}");
  EXPECT_TRUE(control.wait_for_state("a", "lost"));
}

/// Its series end, nothing is lost, and its name is free.
TEST(ControlPools, ThatSayGoodbyeAreForgotten) {
  const ControlHarness control;
  SimulatedPool a(pool_of(control, "a"));
  SimulatedPool b(pool_of(control, "b"));
  ASSERT_EQ(a.wait_registered().code, ErrorCode::kOk);
  ASSERT_EQ(b.wait_registered().code, ErrorCode::kOk);
  a.send(to_json(FromPool(Goodbye{})));
  ASSERT_TRUE(control.wait_for([](const json& cluster) { return cluster["pools"].size() == 1; }));
  const std::string metrics = control.request("GET", "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("tributary_pools_lost_total 0"));
  EXPECT_THAT(metrics, HasSubstr("tributary_pools{state=\"lost\"} 0"));
  EXPECT_THAT(metrics, Not(HasSubstr("pool=\"a\"")));
  EXPECT_EQ(parse_sequence_handle(control.admit(10, 10).body).pool, "b");
  SimulatedPool again(pool_of(control, "a"));
  EXPECT_EQ(again.wait_registered().code, ErrorCode::kOk);
}

/// A pool says goodbye when it has no sequences. One that has some has lost them.
TEST(ControlPools, ThatSayGoodbyeWithSequencesAreLost) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  pool.send(to_json(FromPool(Goodbye{})));
  ASSERT_TRUE(control.wait_for_state("a", "lost"));
  EXPECT_THAT(control.request("GET", fmt::format("/v1/sequences/{}", id)).body,
              HasSubstr("pool_lost"));
  EXPECT_THAT(control.request("GET", "/metrics").body, HasSubstr("tributary_pools_lost_total 1"));
}

TEST(ControlPools, TheLastThatSaysGoodbyeLeavesNoPoolThatServes) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  pool.send(to_json(FromPool(Goodbye{})));
  ASSERT_TRUE(control.wait_for([](const json& cluster) { return cluster["pools"].empty(); }));
  EXPECT_THAT(control.request("GET", "/metrics").body,
              HasSubstr("tributary_pools{state=\"serving\"} 0"));
  EXPECT_EQ(control.request("GET", "/readyz").status, 503);
  EXPECT_EQ(control.admit(10, 10).status, 503);
}

TEST(ControlPools, ThatNeverComeBackAreForgottenWhereAnOperatorSaysSo) {
  const ControlHarness control;
  auto pool = std::make_unique<SimulatedPool>(pool_of(control));
  ASSERT_EQ(pool->wait_registered().code, ErrorCode::kOk);
  const auto forget = [&](const std::string& name) {
    return control.request("DELETE", "/v1/pools/" + name);
  };
  EXPECT_EQ(forget("b").status, 404);
  const HttpResponse living = forget("a");
  EXPECT_EQ(living.status, 409);
  EXPECT_THAT(living.body, HasSubstr("pool a is serving"));
  pool.reset();
  ASSERT_TRUE(control.wait_for_state("a", "lost"));
  EXPECT_EQ(forget("a").status, 200);
  EXPECT_TRUE(control.cluster()["pools"].empty());
  EXPECT_EQ(forget("a").status, 404);
}

TEST(ControlPools, DrainAndResume) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  const HttpResponse drained = control.request("POST", "/v1/pools/a/drain");
  EXPECT_EQ(drained.status, 200);
  EXPECT_EQ(json::parse(drained.body), json({{"name", "a"}, {"state", "draining"}}));
  EXPECT_TRUE(pool.draining());
  EXPECT_EQ(control.admit(10, 10).status, 503);
  EXPECT_EQ(control.request("GET", "/readyz").status, 503);
  EXPECT_EQ(control.request("GET", path_of(id)).status, 200);
  EXPECT_EQ(control.request("POST", "/v1/pools/a/resume", "{}").status, 200);
  EXPECT_EQ(control.admit(10, 10).status, 201);
  EXPECT_EQ(control.request("POST", "/v1/pools/b/drain").status, 404);
  EXPECT_EQ(control.request("POST", "/v1/pools/a/drain", "{\"x\":1}").status, 400);
}

TEST(ControlPools, DrainAndResumeOneWorker) {
  const ControlHarness control;
  SimulatedPoolConfig config = pool_of(control);
  config.workers = 2;
  SimulatedPool pool(config);
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const auto wait_for_state = [&](std::size_t rank, const std::string& state) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    std::string seen;
    while (seen != state && !deadline.expired()) {
      const json cluster = json::parse(control.request("GET", "/v1/cluster").body);
      seen = cluster["pools"][0]["workers"][rank]["state"];
    }
    return seen;
  };
  const HttpResponse drained = control.request("POST", "/v1/pools/a/workers/1/drain");
  EXPECT_EQ(drained.status, 200);
  EXPECT_EQ(json::parse(drained.body), json({{"name", "a"}, {"worker", 1}, {"draining", true}}));
  EXPECT_EQ(wait_for_state(1, "drained"), "drained") << "it held nothing";
  EXPECT_EQ(wait_for_state(0, "serving"), "serving");
  EXPECT_EQ(control.admit(10, 10).status, 201) << "the pool serves";
  const auto refused = [&](const std::string& path, const std::string& body = "") {
    const HttpResponse response = control.request("POST", "/v1/pools/" + path, body);
    return std::to_string(response.status) + " " +
           json::parse(response.body)["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(refused("a/workers/0/drain"), "409 the last one") << "the pool's own answer";
  EXPECT_EQ(refused("a/workers/2/drain"), "404 pool a has no worker 2: it has 2");
  EXPECT_EQ(refused("a/workers/-1/drain"), "400 worker '-1': not a rank, 0 or more");
  EXPECT_EQ(refused("a/workers/1x/resume"), "400 worker '1x': not a rank, 0 or more");
  EXPECT_EQ(refused("b/workers/1/drain"), "404 pool 'b': not known");
  EXPECT_EQ(refused("a/workers/1/drain", "{\"x\":1}").substr(0, 3), "400");
  EXPECT_EQ(control.request("POST", "/v1/pools/a/workers/1/resume", "{}").status, 200);
  EXPECT_EQ(wait_for_state(1, "serving"), "serving");
}

}  // namespace
}  // namespace tributary
