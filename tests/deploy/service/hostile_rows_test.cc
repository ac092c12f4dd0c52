// Rows and rounds that a worker must refuse: real processes, real sockets, messages written byte by
// byte. (The client library sends none of these.)
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "core/base/deadline.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/raw_client.h"
#include "tests/deploy/service/running_tier.h"

namespace tributary {
namespace {

using wire::MessageType;

// Nobody renews leases here. Several times what a case takes while other tests run beside it.
constexpr int kLeaseMs = 5000;
/// For what must happen.
constexpr int kPatienceS = 20;

class HostileRowsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const char* transport = std::getenv("TRIBUTARY_TEST_TRANSPORT");
    tier_ = std::make_unique<RunningTier>(std::vector<std::string>{
        "--workers", "1", "--kv-gib", "0.05", "--lease-ms", std::to_string(kLeaseMs), "--transport",
        transport == nullptr ? "tcp" : transport});
  }
  static void TearDownTestSuite() { tier_.reset(); }

  void TearDown() override {
    for (const SequenceId id : admitted_) tier_->free(id);
    EXPECT_TRUE(tier_->all_free_within(kPatienceS));
  }

  SequenceHandle admit(std::int64_t prompt_tokens = 100) {
    SequenceHandle answer = tier_->admit(prompt_tokens, 8);
    admitted_.push_back(answer.id);
    return answer;
  }

  /// bf16 values around 1, different for every seed.
  static std::vector<std::byte> values(std::size_t bytes, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::uint16_t> words(bytes / 2);
    for (auto& word : words) word = static_cast<std::uint16_t>(0x3f00 | (random() & 0x80ff));
    std::vector<std::byte> result(bytes);
    std::memcpy(result.data(), words.data(), bytes);
    return result;
  }
  static std::size_t row_bytes(const SequenceHandle& a) {
    return 2 * static_cast<std::size_t>(a.shape.kv_lora_rank + a.shape.qk_rope_head_dim);
  }
  static std::vector<std::byte> rows_of(const SequenceHandle& a, std::int64_t count,
                                        unsigned seed) {
    return values(static_cast<std::size_t>(count) * row_bytes(a), seed);
  }
  static wire::Rows message(const SequenceHandle& a, std::int64_t begin, std::int64_t count,
                            const std::vector<std::byte>& payload) {
    return {.request = 1,
            .sequence_id = a.id,
            .epoch = a.epoch,
            .token = a.token,
            .layer = 0,
            .begin = begin,
            .count = count,
            .crc32c = wire::crc32c(payload)};
  }
  /// One token at the end of the prompt, the same for every call.
  static wire::LayerRequest step(const SequenceHandle& a, const std::vector<std::byte>& payload) {
    return {.request = 2,
            .deadline_us = 20'000'000,
            .mode = wire::LayerMode::kAttend,
            .crc32c = wire::crc32c(payload),
            .items = {{.sequence_id = a.id,
                       .epoch = a.epoch,
                       .token = a.token,
                       .base_length = a.prompt_tokens,
                       .tokens = 1,
                       .layer = 0}}};
  }
  static std::vector<std::byte> step_payload(const SequenceHandle& a) {
    return values(static_cast<std::size_t>(a.shape.heads + 1) * row_bytes(a), 77);
  }
  /// Pushes a whole prompt and decodes one token.
  std::vector<std::byte> output_of(RawClient& client, const SequenceHandle& a, unsigned seed) {
    const auto rows = rows_of(a, a.prompt_tokens, seed);
    EXPECT_TRUE(client.push(message(a, 0, a.prompt_tokens, rows), rows).ok());
    std::vector<std::byte> output;
    const auto payload = step_payload(a);
    const wire::LayerReply reply = client.round(step(a, payload), payload, &output);
    EXPECT_EQ(reply.items.at(0), ErrorCode::kOk) << reply.message;
    EXPECT_EQ(reply.crc32c, wire::crc32c(output));
    return output;
  }
  static double refused(const std::string& reason) {
    return tier_->metric("tributary_refused_rows_total", "reason=\"" + reason + "\"");
  }
  /// Refusals are counted with the next heartbeat.
  static void expect_counted(const std::string& reason, double before) {
    const auto deadline = Deadline::after(std::chrono::seconds(kPatienceS));
    while (refused(reason) <= before && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_GT(refused(reason), before) << reason;
  }

  static std::unique_ptr<RunningTier> tier_;
  std::vector<SequenceId> admitted_;
};
std::unique_ptr<RunningTier> HostileRowsTest::tier_;

TEST_F(HostileRowsTest, CorruptRowsAreRefusedAndCanBeSentAgain) {
  const SequenceHandle a = admit();
  RawClient client(a);
  ASSERT_TRUE(client.hello(a).outcome.ok());
  const double before = refused("corrupt");
  const auto rows = rows_of(a, 100, 1);
  auto flipped = rows;
  flipped.at(1000) ^= std::byte{1};
  EXPECT_EQ(client.push(message(a, 0, 100, rows), flipped).code, ErrorCode::kCorrupt);
  // None of the rows is readable: the step says what is missing.
  const auto payload = step_payload(a);
  const wire::LayerReply early = client.round(step(a, payload), payload);
  EXPECT_EQ(early.items.at(0), ErrorCode::kFailedPrecondition);
  EXPECT_NE(early.message.find("0 of 100"), std::string::npos) << early.message;
  EXPECT_TRUE(client.push(message(a, 0, 100, rows), rows).ok());
  EXPECT_EQ(client.round(step(a, payload), payload).items.at(0), ErrorCode::kOk);
  expect_counted("corrupt", before);
}

TEST_F(HostileRowsTest, RepeatedRowsChangeNothing) {
  const SequenceHandle a = admit();
  const SequenceHandle b = admit();
  RawClient client(a);
  ASSERT_TRUE(client.hello(a).outcome.ok());
  const auto expected = output_of(client, a, 5);
  const double before = refused("repeated");
  const auto rows = rows_of(b, 100, 5);
  ASSERT_TRUE(client.push(message(b, 0, 100, rows), rows).ok());
  const auto others = rows_of(b, 50, 6);
  EXPECT_EQ(client.push(message(b, 25, 50, others), others).code, ErrorCode::kAlreadyExists);
  std::vector<std::byte> output;
  const auto payload = step_payload(b);
  EXPECT_EQ(client.round(step(b, payload), payload, &output).items.at(0), ErrorCode::kOk);
  EXPECT_EQ(output, expected);
  expect_counted("repeated", before);
}

TEST_F(HostileRowsTest, LateRowsNeverReachPagesThatHaveMovedOn) {
  const SequenceHandle old = admit();
  RawClient client(old);
  ASSERT_TRUE(client.hello(old).outcome.ok());
  const auto expected = output_of(client, old, 5);
  tier_->free(old.id);
  // Takes all free pages, including those of the old sequence.
  const SequenceHandle next = admit();
  const auto stale = rows_of(old, 100, 9);
  EXPECT_EQ(client.push(message(old, 0, 100, stale), stale).code, ErrorCode::kNotFound);
  EXPECT_EQ(output_of(client, next, 5), expected);
  const double before = refused("unknown_sequence");
  EXPECT_EQ(client.push(message(old, 0, 100, stale), stale).code, ErrorCode::kNotFound);
  std::vector<std::byte> output;
  const auto payload = step_payload(next);
  EXPECT_EQ(client.round(step(next, payload), payload, &output).items.at(0), ErrorCode::kOk);
  EXPECT_EQ(output, expected);
  expect_counted("unknown_sequence", before);
}

TEST_F(HostileRowsTest, RowsOfAnotherTimeOrPlaceAreRefused) {
  const SequenceHandle a = admit();
  const SequenceHandle b = admit();
  RawClient client(a);
  ASSERT_TRUE(client.hello(a).outcome.ok());
  const auto rows = rows_of(a, 10, 1);
  const auto code = [&](auto change) {
    wire::Rows m = message(a, 0, 10, rows);
    change(m);
    return client.push(m, rows).code;
  };
  EXPECT_EQ(code([](auto& m) { m.epoch += 1; }), ErrorCode::kStaleEpoch);
  EXPECT_EQ(code([](auto& m) { m.epoch -= 1; }), ErrorCode::kStaleEpoch);
  EXPECT_EQ(code([](auto& m) { m.begin = 95; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& m) { m.begin = -1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& m) { m.begin = std::int64_t{1} << 62; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& m) { m.layer = 1; }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& m) { m.layer = -1; }), ErrorCode::kInvalidArgument);
  EXPECT_NE(code([](auto& m) { m.count = 9; }), ErrorCode::kOk);
  EXPECT_NE(code([](auto& m) { m.count = std::int64_t{1} << 60; }), ErrorCode::kOk);
  EXPECT_NE(code([](auto& m) { m.count = -1; }), ErrorCode::kOk);
  EXPECT_EQ(code([](auto& m) { m.token.at(3) ^= 1; }), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code([&](auto& m) { m.token = b.token; }), ErrorCode::kPermissionDenied);
  EXPECT_EQ(code([](auto&) {}), ErrorCode::kOk);
}

TEST_F(HostileRowsTest, AStepWithTheTokenOfAnotherSequenceIsRefused) {
  const SequenceHandle a = admit();
  const SequenceHandle b = admit();
  RawClient client(a);
  ASSERT_TRUE(client.hello(a).outcome.ok());
  (void)output_of(client, a, 1);
  const auto payload = step_payload(a);
  wire::LayerRequest round = step(a, payload);
  round.items.at(0).token = b.token;
  EXPECT_EQ(client.round(round, payload).items.at(0), ErrorCode::kPermissionDenied);
  wire::Control control{.request = 4,
                        .items = {{.op = wire::ControlOp::kTruncate,
                                   .sequence_id = a.id,
                                   .epoch = a.epoch,
                                   .token = b.token,
                                   .length = 0}}};
  EXPECT_EQ(client.control(control).items.at(0).code, ErrorCode::kPermissionDenied);
}

TEST_F(HostileRowsTest, AnIntroductionThatDoesNotFitIsAnsweredAndEnds) {
  const SequenceHandle a = admit();
  const auto refused_with = [&](auto change, const std::string& words) {
    wire::Hello hello{.shape = a.shape, .sequence_id = a.id, .token = a.token};
    change(hello);
    RawClient client(a);
    client.send(MessageType::kHello, encode(hello));
    const wire::Outcome outcome = wire::decode<wire::Welcome>(client.receive().header).outcome;
    EXPECT_NE(outcome.message.find(words), std::string::npos) << outcome.message;
    EXPECT_TRUE(client.disconnected());
    return outcome.code;
  };
  EXPECT_NE(refused_with([](auto& h) { h.version = 99; }, "version"), ErrorCode::kOk);
  EXPECT_NE(refused_with([](auto& h) { h.shape.heads = 3; }, "heads"), ErrorCode::kOk);
  EXPECT_NE(refused_with([](auto& h) { h.shape.softmax_scale *= 2; }, "softmax_scale"),
            ErrorCode::kOk);
  EXPECT_EQ(refused_with([](auto& h) { h.token.at(0) ^= 1; }, "token"),
            ErrorCode::kPermissionDenied);
  EXPECT_EQ(refused_with([](auto& h) { h.sequence_id += 1; }, "token"),
            ErrorCode::kPermissionDenied);
}

TEST_F(HostileRowsTest, NothingIsAnsweredBeforeAnIntroduction) {
  const SequenceHandle a = admit();
  const auto rows = rows_of(a, 100, 1);
  RawClient client(a);
  client.send(MessageType::kRows, encode(message(a, 0, 100, rows)), rows);
  EXPECT_TRUE(client.disconnected());
}

TEST_F(HostileRowsTest, RandomMessagesDoNoHarm) {
  const SequenceHandle a = admit();
  std::mt19937 random(3);
  for (std::uint16_t type = 0; type < 48; ++type) {
    RawClient client(a);
    ASSERT_TRUE(client.hello(a).outcome.ok());
    // Forty-eight connections may take longer than a lease.
    const wire::Control renewal{.request = 4,
                                .items = {{.op = wire::ControlOp::kRenew,
                                           .sequence_id = a.id,
                                           .epoch = a.epoch,
                                           .token = a.token,
                                           .length = 0}}};
    EXPECT_EQ(client.control(renewal).items.at(0).code, ErrorCode::kOk);
    for (const std::size_t size : {0, 1, 17, 300}) {
      std::vector<std::byte> header(size);
      for (auto& byte : header) byte = static_cast<std::byte>(random());
      client.send(static_cast<MessageType>(type), header, values(size * 2, type));
    }
  }
  RawClient client(a);
  ASSERT_TRUE(client.hello(a).outcome.ok());
  (void)output_of(client, a, 5);
}

TEST_F(HostileRowsTest, ASilentClientsPagesAreFreeAfterItsLease) {
  const SequenceHandle a = tier_->admit(100, 8);
  {
    RawClient client(a);
    ASSERT_TRUE(client.hello(a).outcome.ok());
    (void)output_of(client, a, 5);
  }
  EXPECT_TRUE(tier_->all_free_within(kLeaseMs / 1000.0 + kPatienceS));
}

}  // namespace
}  // namespace tributary
