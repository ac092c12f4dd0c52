// Admission by the client library, against an HTTP server that gives the answers that a test sets.
#include "deploy/service/client/tier_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "core/interface/manual_clock.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/patience.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/client/fake_control.h"
#include "tests/loopback_listener.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using test::error_response;
using test::sample_answer;

class TierApiTest : public testing::Test {
 protected:
  SequenceHandle admit() {
    return api_.admit({.prompt_tokens = 5,
                       .max_new_tokens = 6,
                       .spread = SpreadPolicy::kAll,
                       .idempotency_key = "key",
                       .idempotency_secret = "its secret"},
                      Deadline::after(std::chrono::seconds(20)));
  }
  /// Admits where there is no room; returns the error's retry_after.
  milliseconds retry_after() {
    try {
      (void)admit();
    } catch (const PoolFullError& full) {
      EXPECT_EQ(full.code(), ErrorCode::kPoolFull);
      return full.retry_after();
    }
    ADD_FAILURE() << "admitted";
    return {};
  }
  test::FakeControl control_;
  TierApi api_{
      {.url = parse_url(control_.url()), .bearer_token = "secret", .certificate_authority = {}}};
};

TEST_F(TierApiTest, AdmitsQueriesAndFrees) {
  control_.answer = [](const HttpRequest& request) {
    HttpResponse response;
    response.status = request.method == "POST" ? 201 : request.method == "GET" ? 200 : 204;
    if (request.method != "DELETE") response.body = to_json(sample_answer());
    return response;
  };
  EXPECT_EQ(admit().id, 77U);
  EXPECT_EQ(api_.query(77, Deadline::after(std::chrono::seconds(20))).pool, "p");
  api_.free(77, "p", Deadline::after(std::chrono::seconds(20)));
  const auto asked = control_.requests();
  ASSERT_EQ(asked.size(), 3U);
  EXPECT_EQ(asked[0].path, "/v1/sequences");
  EXPECT_EQ(asked[0].header("Idempotency-Key"), "key");
  EXPECT_EQ(asked[0].header("Idempotency-Secret"), "its secret");
  EXPECT_EQ(asked[0].header("Authorization"), "Bearer secret");
  EXPECT_THAT(asked[0].body, testing::HasSubstr(R"("spread":"all")"));
  EXPECT_EQ(asked[1].method + asked[1].path, "GET/v1/sequences/77");
  EXPECT_EQ(asked[2].method + asked[2].path, "DELETE/v1/sequences/77");
  EXPECT_EQ(asked[2].query, "pool=p");
}

TEST_F(TierApiTest, TellsTheWorkersOfTheTier) {
  const Deadline far = Deadline::after(std::chrono::seconds(20));
  control_.answer = [](const HttpRequest& request) {
    HttpResponse response;
    response.status = 200;
    response.body = workers_to_json({request.path, "tcp://127.0.0.1:1"});
    return response;
  };
  EXPECT_THAT(api_.workers(far), testing::ElementsAre("/v1/workers", "tcp://127.0.0.1:1"));
  control_.answer = [](const HttpRequest&) { return error_response(403, "permission_denied"); };
  EXPECT_EQ(code_of([&] { (void)api_.workers(far); }), ErrorCode::kPermissionDenied);
  control_.answer = [](const HttpRequest&) {
    HttpResponse response;
    response.status = 200;
    response.body = "{}";
    return response;
  };
  EXPECT_THROW((void)api_.workers(far), AnswerError);
}

TEST_F(TierApiTest, AFullTierSaysWhenToComeBack) {
  control_.answer = [](const HttpRequest&) {
    HttpResponse response = error_response(429, "pool_full");
    response.headers.push_back({"Retry-After", "3"});
    return response;
  };
  EXPECT_EQ(retry_after(), milliseconds(3000));
  for (const char* text : {"", "x", "-1", "99999999999999999999"}) {
    control_.answer = [text](const HttpRequest&) {
      HttpResponse response = error_response(429, "pool_full");
      response.headers.push_back({"Retry-After", text});
      return response;
    };
    EXPECT_EQ(retry_after(), milliseconds(1000)) << text;
  }
}

/// One client serves many threads: the answer to one of them is not given to another.
TEST_F(TierApiTest, EveryErrorKeepsWhatItsOwnCallWasTold) {
  int seconds = 3;
  control_.answer = [&](const HttpRequest&) {
    HttpResponse response = error_response(429, "pool_full");
    response.headers.push_back({"Retry-After", std::to_string(seconds)});
    return response;
  };
  try {
    (void)admit();
  } catch (const PoolFullError& first) {
    seconds = 7;
    EXPECT_EQ(retry_after(), milliseconds(7000));
    EXPECT_EQ(first.retry_after(), milliseconds(3000));
    return;
  }
  ADD_FAILURE() << "admitted";
}

TEST_F(TierApiTest, ErrorsHaveTheCodeThatTheTierNames) {
  for (int i = 1; i < kErrorCodes; ++i) {
    const auto code = static_cast<ErrorCode>(i);
    // `unavailable` is an answer here, not a broken connection: it is not asked again.
    control_.answer = [&](const HttpRequest&) {
      return error_response(400, std::string(error_code_name(code)));
    };
    EXPECT_EQ(code_of([&] { (void)admit(); }), code);
    EXPECT_EQ(message_of([&] { (void)admit(); }), "why");
  }
  EXPECT_EQ(control_.requests().size(), 2U * (kErrorCodes - 1));
}

TEST_F(TierApiTest, AnswersOfOthersAreUnderstoodByTheirStatus) {
  const std::pair<int, ErrorCode> answers[] = {
      {401, ErrorCode::kPermissionDenied}, {404, ErrorCode::kNotFound},
      {413, ErrorCode::kTooLarge},         {429, ErrorCode::kPoolFull},
      {502, ErrorCode::kUnavailable},      {504, ErrorCode::kDeadlineExceeded},
      {500, ErrorCode::kMalformedInput}};
  for (const auto& [status, code] : answers) {
    for (const char* body : {"", "<html>", "{}", R"({"error": "no"})", R"({"error": {"code": 7}})",
                             R"({"error": {"code": "x", "message": 3}})"}) {
      control_.answer = [status = status, body](const HttpRequest&) {
        HttpResponse response;
        response.status = status;
        response.body = body;
        return response;
      };
      EXPECT_EQ(code_of([&] { (void)admit(); }), code) << status << body;
    }
  }
}

bool somebody_came(const test::LoopbackListener& door) {
  constexpr int kPatienceMs = 20'000;
  pollfd entry{door.fd(), POLLIN, 0};
  return poll(&entry, 1, kPatienceMs) > 0;
}

/// The first call meets a connection that breaks, then a port that refuses, then the tier.
TEST(TierApiStart, TheFirstCallWaitsForAControlPlaneThatStarts) {
  std::optional<test::LoopbackListener> door(std::in_place);
  const std::string address = door->address();
  TierApi api(
      {.url = parse_url("http://" + address), .bearer_token = {}, .certificate_authority = {}});
  auto freed = std::async(std::launch::async,
                          [&] { api.free(77, "p", Deadline::after(std::chrono::seconds(20))); });
  ASSERT_TRUE(somebody_came(*door));
  door.reset();

  EventLoop loop;
  HttpServerConfig config;
  config.listen = address;
  const HttpServer server(loop, config,
                          {.request =
                               [](const HttpRequest&, const HttpRespond& respond) {
                                 HttpResponse response;
                                 response.status = 204;
                                 respond(response);
                               },
                           .may_upgrade = {},
                           .upgraded = {}});
  std::thread thread([&] { loop.run(); });
  EXPECT_NO_THROW(freed.get());
  loop.stop();
  thread.join();
}

TEST(TierApiStart, NobodyThereIsUnavailableInTheEnd) {
  // HTTP reads its deadlines on the processes' clock; the pauses between tries are simulated.
  ManualClock clock(steady_clock().now());
  const Time begin = clock.now();
  TierApi api(
      {.url = parse_url("http://127.0.0.1:1"), .bearer_token = {}, .certificate_authority = {}},
      clock);
  EXPECT_EQ(code_of([&] { api.free(77, "p", Deadline(begin + std::chrono::hours(1))); }),
            ErrorCode::kUnavailable);
  EXPECT_EQ(clock.now() - begin, kClientPatience - milliseconds(100));
}

TEST_F(TierApiTest, AnAnswerThatIsNoSequenceIsMalformed) {
  control_.answer = [](const HttpRequest&) {
    HttpResponse response;
    response.status = 201;
    response.body = R"({"sequence_id": "1"})";
    return response;
  };
  EXPECT_EQ(code_of([&] { (void)admit(); }), ErrorCode::kMalformedInput);
  EXPECT_THROW((void)admit(), AnswerError);
  EXPECT_THROW((void)api_.query(77, Deadline::after(std::chrono::seconds(20))), AnswerError);
}

}  // namespace
}  // namespace tributary
