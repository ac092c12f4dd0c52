// Admission through a control plane with simulated pools over real sockets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "deploy/service/protocol/admission.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(ControlAdmission, AnswersWithAllThatAClientNeeds) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  const Registered registered = pool.wait_registered();
  ASSERT_EQ(registered.code, ErrorCode::kOk) << registered.message;
  const HttpResponse response = control.admit(1000, 24);
  ASSERT_EQ(response.status, 201) << response.body;
  const SequenceHandle answer = parse_sequence_handle(response.body);
  EXPECT_EQ(answer.pool, "a");
  EXPECT_EQ(answer.prompt_tokens, 1000);
  EXPECT_EQ(answer.addresses,
            (std::vector<std::string>{"tcp://127.0.0.1:5000", "tcp://127.0.0.1:5001"}));
  EXPECT_EQ(answer.shape, sample_shape());
  EXPECT_EQ(answer.id >> 32, registered.incarnation);
  EXPECT_EQ(response.header("Location"), path_of(answer.id));

  EXPECT_NE(answer.token, wire::Token{});
  const HttpResponse asked = control.request("GET", path_of(answer.id));
  ASSERT_EQ(asked.status, 200) << asked.body;
  EXPECT_EQ(parse_sequence_handle(asked.body).token, wire::Token{}) << "ids can be guessed";
  EXPECT_EQ(parse_sequence_handle(asked.body).missing, "everything");
}

TEST(ControlAdmission, WithoutAPoolIsUnavailable) {
  const ControlHarness control;
  EXPECT_EQ(control.request("GET", "/readyz").status, 503);
  const HttpResponse response = control.admit(10, 10);
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(code_of_body(response), "unavailable");
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  EXPECT_EQ(control.request("GET", "/readyz").status, 200);
}

TEST(ControlAdmission, TellsFullFromTooLarge) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const HttpResponse large = control.admit(2 * 64 * 64, 1);
  EXPECT_EQ(large.status, 413);
  EXPECT_EQ(code_of_body(large), "too_large");
  EXPECT_THAT(large.body, HasSubstr("128 pages"));

  const HttpResponse first = control.admit(100 * 64, 0);
  ASSERT_EQ(first.status, 201) << first.body;
  const HttpResponse full = control.admit(64 * 64, 0);
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(code_of_body(full), "pool_full");
  const int retry_after = std::stoi(std::string(full.header("Retry-After")));
  EXPECT_GE(retry_after, 1);
  EXPECT_LE(retry_after, 30);

  const SequenceId id = parse_sequence_handle(first.body).id;
  EXPECT_EQ(control.request("DELETE", path_of(id)).status, 200);
  EXPECT_EQ(control.admit(64 * 64, 0).status, 201);
}

TEST(ControlAdmission, SequencesAreFreedOnceAndForAll) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  for (int i = 0; i < 2; ++i) {
    const HttpResponse response = control.request("DELETE", path_of(id));
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "{}");
  }
  EXPECT_TRUE(pool.sequences().empty());
  const HttpResponse asked = control.request("GET", path_of(id));
  EXPECT_EQ(asked.status, 404);
  EXPECT_THAT(asked.body, HasSubstr("was freed"));
  EXPECT_EQ(control.request("GET", path_of(12345)).status, 404);
  EXPECT_EQ(control.request("DELETE", path_of(12345)).status, 404);
  EXPECT_EQ(code_of_body(control.request("GET", "/v1/sequences/0x7")), "malformed_input");
}

TEST(ControlAdmission, AnExpiredLeaseEndsASequence) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const SequenceId id = parse_sequence_handle(control.admit(10, 10).body).id;
  pool.expire(id);
  ASSERT_TRUE(control.wait_for([](const json& cluster) { return cluster["sequences"] == 0; }));
  const HttpResponse asked = control.request("GET", path_of(id));
  EXPECT_EQ(asked.status, 404);
  EXPECT_THAT(asked.body, HasSubstr("lease"));
}

TEST(ControlAdmission, OneKeyIsOneSequence) {
  const ControlHarness control;
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  const HttpResponse first = control.admit(10, 10, "key-1");
  ASSERT_EQ(first.status, 201);
  const HttpResponse again = control.admit(10, 10, "key-1");
  EXPECT_EQ(again.status, 201);
  EXPECT_EQ(again.body, first.body);
  const HttpResponse other = control.admit(11, 10, "key-1");
  EXPECT_EQ(other.status, 409);
  EXPECT_EQ(code_of_body(other), "already_exists");
  EXPECT_EQ(pool.sequences().size(), 1U);
  // With its sequence, a key is forgotten.
  const SequenceId id = parse_sequence_handle(first.body).id;
  EXPECT_EQ(control.request("DELETE", path_of(id)).status, 200);
  const HttpResponse later = control.admit(11, 10, "key-1");
  ASSERT_EQ(later.status, 201);
  EXPECT_NE(parse_sequence_handle(later.body).id, id);
}

TEST(ControlAdmission, APoolThatDoesNotAnswerGivesATimeout) {
  ControlOptions options = ControlHarness::quick_options();
  options.failure_timeout_ms = 1'000;
  const ControlHarness control(options);
  SimulatedPool pool(pool_of(control));
  ASSERT_EQ(pool.wait_registered().code, ErrorCode::kOk);
  pool.stall();  // it beats, but does not answer
  const HttpResponse response = control.admit(10, 10);
  EXPECT_EQ(response.status, 504);
  EXPECT_EQ(code_of_body(response), "deadline_exceeded");
}

TEST(ControlAdmission, APoolThatIsLostMeanwhileIsPassedOver) {
  const ControlHarness control;
  auto a = std::make_unique<SimulatedPool>(pool_of(control, "a"));
  SimulatedPool b(pool_of(control, "b"));
  ASSERT_EQ(a->wait_registered().code, ErrorCode::kOk);
  ASSERT_EQ(b.wait_registered().code, ErrorCode::kOk);
  a->stall();
  auto answer = std::async(std::launch::async, [&] { return control.admit(10, 10); });
  ASSERT_TRUE(a->wait_for([](const auto& sequences) { return sequences.size() == 1; }));
  a.reset();
  const HttpResponse response = answer.get();
  ASSERT_EQ(response.status, 201) << response.body;
  EXPECT_EQ(parse_sequence_handle(response.body).pool, "b");
}

}  // namespace
}  // namespace tributary
