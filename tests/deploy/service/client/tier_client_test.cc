// The client library against workers that misbehave: deadlines, lost connections, late and corrupt
// replies, refusals; and how calls are cut into messages.
#include "deploy/service/client/tier_client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "tests/deploy/service/client/client_fixture.h"
#include "tests/deploy/service/client/fake_control.h"

namespace tributary {
namespace {

using test::expect_error;
using test::FakeWorker;
using test::kSmallInput;
using test::kSmallOutput;
using test::kSmallRowBytes;
using test::small_sequence;
using test::small_shape;

class TierClientTest : public test::ClientFixture {};

TEST_F(TierClientTest, OneGreetingIsEnoughForManyCalls) {
  SequenceHandle a = sequence();
  std::vector<float> output;
  for (int layer = 0; layer < 3; ++layer) {
    const LayerItem one = item(a, output);
    client_->attend(std::span(&one, 1), layer);
    EXPECT_THAT(output, testing::Each(7));
  }
  const auto received = worker_.received();
  ASSERT_EQ(received.hellos.size(), 1U);
  EXPECT_EQ(received.hellos[0].shape, small_shape());
  EXPECT_EQ(received.hellos[0].sequence_id, 7U);
  ASSERT_EQ(received.rounds.size(), 3U);
  EXPECT_EQ(received.rounds[2].items[0].layer, 2);
  EXPECT_EQ(received.rounds[2].items[0].base_length, 200);
  EXPECT_EQ(received.rounds[2].items[0].epoch, 3U);
  EXPECT_GT(received.rounds[2].deadline_us, 1'000'000U);
}

TEST_F(TierClientTest, OneConnectionServesManySequencesAndOneMessageProvesThem) {
  // One message's: the worker's welcome may come between two.
  constexpr std::size_t kSequences = wire::kMaxItems;
  std::vector<SequenceHandle> sequences;
  for (std::size_t id = 1; id <= kSequences; ++id) sequences.push_back(sequence(id));
  std::vector<std::vector<float>> outputs(kSequences);
  std::vector<LayerItem> items;
  for (std::size_t i = 0; i < kSequences; ++i) items.push_back(item(sequences[i], outputs[i]));
  client_->attend(items, 0);
  client_->attend(items, 1);
  const auto received = worker_.received();
  EXPECT_EQ(received.hellos.size(), 1U);
  ASSERT_EQ(received.proofs.size(), 1U);
  EXPECT_EQ(received.proofs[0].items.size(), kSequences - 1);
  for (std::size_t i = 0; i < kSequences; ++i) {
    EXPECT_THAT(outputs[i], testing::Each(static_cast<float>(i + 1)));
  }
}

TEST_F(TierClientTest, AConnectionThatIsNotUsedIsClosedAndMadeAgain) {
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  client_->attend(std::span(&one, 1), 0);
  worker_.send_raw(static_cast<std::uint16_t>(wire::MessageType::kNotUsed), {});
  worker_.wait_until([](const auto& received) { return received.ends == 1; });
  client_->attend(std::span(&one, 1), 1);
  EXPECT_EQ(worker_.received().hellos.size(), 2U);
}

TEST_F(TierClientTest, ARefusedGreetingSaysWhy) {
  worker_.on_hello = [](const wire::Hello& hello) {
    wire::Welcome welcome;
    welcome.shape = hello.shape;
    welcome.outcome = {ErrorCode::kInvalidArgument, "heads: 2 here, 4 in the pool"};
    return welcome;
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  expect_error(ErrorCode::kInvalidArgument, "heads: 2 here",
               [&] { client_->attend(std::span(&one, 1), 0); });
}

TEST_F(TierClientTest, AWorkerThatDoesNotAnswerIsSaidToBeWaitedFor) {
  worker_.on_hello = [](const auto&) { return std::nullopt; };
  std::promise<std::string> told;
  TierClientConfig config = test::without_control_plane();
  config.waiting = [&](const std::string& text) { told.set_value(text); };
  make_client(config);
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  auto call = std::async(std::launch::async, [&] {
    client_->attend(std::span(&one, 1), 0, Deadline::after(test::kFar));
  });
  EXPECT_THAT(told.get_future().get(), testing::HasSubstr("does not answer; calls wait"));
  worker_.send_raw(static_cast<std::uint16_t>(wire::MessageType::kWelcome),
                   wire::encode(wire::Welcome{.outcome = {}, .shape = a.shape}));
  EXPECT_NO_THROW(call.get());
}

TEST_F(TierClientTest, AConnectionThatEndsBeforeTheWelcomeIsTriedAgain) {
  std::atomic<int> greetings = 0;
  worker_.on_hello = [&](const wire::Hello& hello) -> std::optional<wire::Welcome> {
    if (++greetings <= 3) {
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
  client_->attend(std::span(&one, 1), 0);
  EXPECT_EQ(greetings, 4);
}

TEST_F(TierClientTest, AFullWorkerIsAskedAgain) {
  std::atomic<int> asked = 0;
  worker_.on_round = [&](const wire::LayerRequest& round, auto) {
    FakeWorker::RoundAnswer answer;
    const bool full = ++asked <= 3;
    answer.reply.items.assign(round.items.size(), full ? ErrorCode::kPoolFull : ErrorCode::kOk);
    if (full) answer.reply.message = "too many requests wait";
    if (!full) answer.payload.resize(kSmallOutput * sizeof(float));
    return std::optional(answer);
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  client_->attend(std::span(&one, 1), 0);
  EXPECT_EQ(asked, 4);
}

/// Answers for each sequence with a code, and the length that was asked.
void answer_controls(FakeWorker& worker, const std::function<ErrorCode(std::uint64_t)>& code) {
  worker.on_control = [code](const wire::Control& control) {
    wire::ControlReply reply{.request = 0, .items = {}, .message = "as the leader has it"};
    for (const wire::ControlItem& item : control.items) {
      reply.items.push_back({code(item.sequence_id), item.epoch, item.length});
    }
    return std::optional(reply);
  };
}

/// Failures as {index, code}.
using Failures = std::vector<std::pair<std::size_t, ErrorCode>>;
template <typename Call>
Failures failures_of(const Call& call) {
  Failures failures;
  try {
    call();
  } catch (const ItemsError& error) {
    EXPECT_EQ(error.code(), error.failed().front().status.code());
    EXPECT_EQ(error.what(), error.failed().front().status.message());
    for (const ItemFailure& item : error.failed()) {
      failures.emplace_back(item.index, item.status.code());
    }
  }
  return failures;
}

TEST_F(TierClientTest, ReadinessOfManyIsAskedOfTheirWorkersTogether) {
  const SequenceHandle a = sequence(1), b = sequence(2), c = sequence(3);
  std::atomic<int> asked = 0;
  answer_controls(worker_, [&](std::uint64_t id) {
    return id == 2 && ++asked < 3 ? ErrorCode::kUnavailable : ErrorCode::kOk;
  });
  const std::vector<const SequenceHandle*> all = {&a, &b, &c};
  client_->wait_ready(all);
  const auto controls = worker_.received().controls;
  ASSERT_EQ(controls.size(), 3U);
  EXPECT_EQ(controls[0].items.size(), 3U);
  EXPECT_EQ(controls[0].items[0].op, wire::ControlOp::kReady);
  EXPECT_EQ(controls[2].items.size(), 1U);
  client_->wait_ready(std::span<const SequenceHandle* const>());
}

TEST_F(TierClientTest, ManyAreFreedByTheirWorkersAndTheRestByTheControlPlane) {
  test::FakeControl control;
  control.answer = [](const HttpRequest&) { return test::error_response(410, "pool_lost"); };
  TierClientConfig config;
  config.url = control.url();
  make_client(config);
  const SequenceHandle a = sequence(1), b = sequence(2);
  SequenceHandle elsewhere = sequence(3);
  elsewhere.addresses = {"tcp://127.0.0.1:1"};
  answer_controls(worker_, [&](std::uint64_t id) {
    return id == 2 ? ErrorCode::kNotFound : ErrorCode::kOk;  // it has ended: no error
  });
  const std::vector<const SequenceHandle*> all = {&a, &b, &elsewhere};
  client_->free(all);
  const auto controls = worker_.received().controls;
  ASSERT_EQ(controls.size(), 1U);
  EXPECT_EQ(controls[0].items.size(), 2U);
  EXPECT_EQ(controls[0].items[0].op, wire::ControlOp::kFree);
  // Beside it the client may ask about the pool of the worker that it cannot reach.
  const auto requests = control.requests();
  EXPECT_EQ(std::ranges::count(requests, "DELETE", &HttpRequest::method), 1);
  control.answer = [](const HttpRequest&) {
    return test::error_response(403, "permission_denied");
  };
  EXPECT_EQ(failures_of([&] { client_->free(all); }),
            (Failures{{2, ErrorCode::kPermissionDenied}}));
}

TEST_F(TierClientTest, ExtendSaysHowManyTokensInAll) {
  SequenceHandle a = sequence();
  const std::int64_t before = a.max_new_tokens;
  client_->extend(a, before + 100);
  EXPECT_EQ(a.max_new_tokens, before + 100);
  client_->extend(a, before);
  EXPECT_EQ(a.max_new_tokens, before + 100) << "the pool takes nothing back";
  const auto controls = worker_.received().controls;
  ASSERT_EQ(controls.size(), 2U);
  EXPECT_EQ(controls[0].items[0].op, wire::ControlOp::kExtend);
  EXPECT_EQ(controls[0].items[0].length, a.prompt_tokens + before + 100);
  answer_controls(worker_, [](std::uint64_t) { return ErrorCode::kPoolFull; });
  expect_error(ErrorCode::kPoolFull, "as the leader", [&] { client_->extend(a, before + 200); });
  EXPECT_EQ(a.max_new_tokens, before + 100);
  EXPECT_EQ(code_of([&] { client_->extend(a, -1); }), ErrorCode::kInvalidArgument);
}

TEST_F(TierClientTest, NothingIsABatchToo) {
  SequenceHandle a = sequence(1), b = sequence(2);
  std::vector<float> x;
  LayerItem none = item(a, x);
  none.tokens = 0;
  none.query = none.row = {};
  none.output = nullptr;
  client_->attend(std::span(&none, 1), 0);
  client_->attend({}, 0);
  client_->commit({}, {});
  client_->free(std::span<const SequenceHandle* const>());
  client_->push_rows(a, 0, 0, {});
  client_->push_rows(std::span<const PromptRows>());
  EXPECT_TRUE(worker_.received().hellos.empty());
  const std::vector<LayerItem> items = {none, item(b, x)};
  client_->attend(items, 0);
  EXPECT_THAT(x, testing::Each(2));
  EXPECT_EQ(worker_.received().rounds.at(0).items.size(), 1U);
}

TEST_F(TierClientTest, ALostConnectionEndsWhatCannotBeSentAgainAtOnce) {
  worker_.on_control = [](const auto&) { return std::nullopt; };
  SequenceHandle b = sequence(2);
  const auto far = Deadline::after(test::kFar);
  auto truncate = std::async(std::launch::async,
                             [&] { return status_of([&] { client_->truncate(b, 100, far); }); });
  worker_.wait_until([](const auto& r) { return !r.controls.empty(); });
  worker_.disconnect();
  const Status status = truncate.get();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr("whether the worker has done it"));
  EXPECT_FALSE(far.expired());
}

TEST_F(TierClientTest, ALostConnectionIsMadeAgainAndTheRestIsSentAgain) {
  SequenceHandle a = sequence();
  std::vector<float> output;
  bool drop = true;
  bool waits = true;  // the first message's item, at its leader
  worker_.on_round = [&](const wire::LayerRequest& round,
                         auto) -> std::optional<FakeWorker::RoundAnswer> {
    if (std::exchange(drop, false)) {
      worker_.disconnect();
      return std::nullopt;
    }
    FakeWorker::RoundAnswer answer;
    if (std::exchange(waits, false)) {
      answer.reply.items.assign(round.items.size(), ErrorCode::kFailedPrecondition);
      return answer;
    }
    answer.reply.items.assign(round.items.size(), ErrorCode::kOk);
    answer.payload.resize(kSmallOutput * sizeof(float));
    return answer;
  };
  const LayerItem one = item(a, output);
  client_->attend(std::span(&one, 1), 0);
  EXPECT_THAT(output, testing::Each(0));
  EXPECT_EQ(worker_.received().hellos.size(), 2U);
  const auto rounds = worker_.received().rounds;
  ASSERT_EQ(rounds.size(), 3U);
  EXPECT_EQ(rounds[2].request, rounds[0].request);
  EXPECT_EQ(rounds[2].items[0].base_length, rounds[0].items[0].base_length);
}

TEST_F(TierClientTest, OutputsWithoutTheirChecksumAreCorrupt) {
  worker_.on_round = [](const wire::LayerRequest& round, auto) {
    FakeWorker::RoundAnswer answer;
    answer.reply.items.assign(round.items.size(), ErrorCode::kOk);
    answer.payload.resize(kSmallOutput * sizeof(float));
    answer.reply.crc32c = wire::crc32c(answer.payload) ^ 1;
    return std::optional(answer);
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  EXPECT_EQ(code_of([&] { client_->attend(std::span(&one, 1), 0); }), ErrorCode::kCorrupt);
}

TEST_F(TierClientTest, OutputsOfAnotherSizeAreRefused) {
  std::size_t bytes = kSmallOutput * sizeof(float) - 4;
  worker_.on_round = [&](const wire::LayerRequest& round, auto) {
    FakeWorker::RoundAnswer answer;
    answer.reply.items.assign(round.items.size(), ErrorCode::kOk);
    answer.payload.resize(bytes);
    return std::optional(answer);
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  EXPECT_EQ(code_of([&] { client_->attend(std::span(&one, 1), 0); }), ErrorCode::kMalformedInput);
  bytes += 8;
  EXPECT_EQ(code_of([&] { client_->attend(std::span(&one, 1), 0); }), ErrorCode::kMalformedInput);
  EXPECT_THAT(output, testing::Each(-1));
}

TEST_F(TierClientTest, BytesThatAreNoMessageEndTheConnection) {
  worker_.on_round = [&](const wire::LayerRequest&, auto) {
    worker_.send_raw(static_cast<std::uint16_t>(wire::MessageType::kLayerReply),
                     std::vector<std::byte>(5));
    return std::optional<FakeWorker::RoundAnswer>();
  };
  SequenceHandle a = sequence();
  std::vector<float> output;
  const LayerItem one = item(a, output);
  EXPECT_EQ(code_of([&] { client_->attend(std::span(&one, 1), 0); }), ErrorCode::kMalformedInput);
}

TEST_F(TierClientTest, OutputsOfItemsThatSucceededAreThereBesideTheError) {
  worker_.on_round = [](const wire::LayerRequest& round, auto) {
    FakeWorker::RoundAnswer answer;
    answer.reply.items.assign(round.items.size(), ErrorCode::kOk);
    answer.reply.items[1] = ErrorCode::kStaleEpoch;
    answer.reply.message = "epoch 3, now 4";
    const std::vector<float> output((round.items.size() - 1) * kSmallOutput, 5);
    const auto bytes = std::as_bytes(std::span(output));
    answer.payload.assign(bytes.begin(), bytes.end());
    return std::optional(answer);
  };
  SequenceHandle a = sequence(1), b = sequence(2), c = sequence(3);
  std::vector<float> x, y, z;
  const std::vector<LayerItem> items = {item(a, x), item(b, y), item(c, z)};
  expect_error(ErrorCode::kStaleEpoch, "sequence 2: epoch 3, now 4",
               [&] { client_->attend(items, 0); });
  EXPECT_EQ(failures_of([&] { client_->attend(items, 0); }),
            (Failures{{1, ErrorCode::kStaleEpoch}}));
  EXPECT_THAT(x, testing::Each(5));
  EXPECT_THAT(y, testing::Each(-1));
  EXPECT_THAT(z, testing::Each(5));
}

TEST_F(TierClientTest, LargeBatchesTravelInSeveralMessages) {
  constexpr std::size_t kBatch = 2 * wire::kMaxItems + 3;
  std::vector<SequenceHandle> sequences;
  for (std::size_t i = 0; i < kBatch; ++i) sequences.push_back(sequence(i + 1));
  std::vector<std::vector<float>> outputs(kBatch);
  std::vector<LayerItem> items;
  for (std::size_t i = 0; i < kBatch; ++i) {
    items.push_back(item(sequences[i], outputs[i], 1 + static_cast<int>(i % 3)));
  }
  client_->attend(items, 1);
  for (std::size_t i = 0; i < kBatch; ++i) {
    EXPECT_THAT(outputs[i], testing::Each(static_cast<float>(i + 1)));
  }
  EXPECT_EQ(worker_.received().rounds.size(), 3U);

  std::vector<SequenceHandle*> all;
  for (SequenceHandle& sequence : sequences) all.push_back(&sequence);
  client_->commit(all, std::vector<std::int32_t>(kBatch, 1));
  EXPECT_EQ(worker_.received().controls.size(), 3U);
  for (const SequenceHandle& sequence : sequences) EXPECT_EQ(sequence.length, 201);
}

TEST_F(TierClientTest, CommitAndTruncateKeepTheHandle) {
  SequenceHandle a = sequence();
  SequenceHandle* handle = &a;
  client_->commit(std::span(&handle, 1), std::vector<std::int32_t>{2});
  EXPECT_EQ(a.length, 202);
  client_->truncate(a, 150);
  EXPECT_EQ(a.length, 150);
  EXPECT_EQ(a.epoch, 4U);
  const auto controls = worker_.received().controls;
  EXPECT_EQ(controls[0].items[0].length, 202);
  EXPECT_EQ(controls[1].items[0].op, wire::ControlOp::kTruncate);

  worker_.on_control = [](const wire::Control&) {
    wire::ControlReply reply;
    reply.items.push_back({ErrorCode::kNotFound, 0, 0});
    reply.message = "gone";
    return std::optional(reply);
  };
  expect_error(ErrorCode::kNotFound, "gone", [&] { client_->truncate(a, 100); });
  EXPECT_EQ(a.length, 150);
  EXPECT_EQ(a.epoch, 4U);
}

TEST_F(TierClientTest, LeasesAreRenewedAndForgotten) {
  SequenceHandle a = sequence();
  a.lease_ms = 30;
  client_->adopt_trusted(a);
  worker_.wait_until([](const auto& r) { return r.controls.size() >= 3; });
  for (const wire::Control& control : worker_.received().controls) {
    EXPECT_EQ(control.items[0].op, wire::ControlOp::kRenew);
    EXPECT_EQ(control.items[0].sequence_id, 7U);
  }
  client_.reset();
  const std::size_t sent = worker_.received().controls.size();
  EXPECT_GE(sent, 3U);
}

TEST_F(TierClientTest, BadArgumentsAreRefusedBeforeAnythingIsSent) {
  SequenceHandle a = sequence();
  std::vector<std::byte> rows(10 * kSmallRowBytes);
  std::vector<float> output;
  const LayerItem good = item(a, output);
  LayerItem bad = good;
  const auto attend = [&](const LayerItem& one, int layer) {
    return code_of([&] { client_->attend(std::span(&one, 1), layer); });
  };
  EXPECT_EQ(attend(good, 3), ErrorCode::kInvalidArgument);
  EXPECT_EQ(attend(good, -1), ErrorCode::kInvalidArgument);
  bad.tokens = 17;
  EXPECT_EQ(attend(bad, 0), ErrorCode::kInvalidArgument);
  bad = good;
  for (const auto part : {&LayerItem::query, &LayerItem::row}) {
    bad = good;
    (bad.*part).data = nullptr;
    EXPECT_EQ(attend(bad, 0), ErrorCode::kInvalidArgument);
    bad = good;
    (bad.*part).stride = 4;
    EXPECT_EQ(attend(bad, 0), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(code_of([&] { client_->forward(std::span(&good, 1), 0); }),
            ErrorCode::kFailedPrecondition);
  const auto push = [&](int layer, std::int64_t begin, std::size_t bytes) {
    return code_of([&] { client_->push_rows(a, layer, begin, std::span(rows).first(bytes)); });
  };
  EXPECT_EQ(push(3, 0, rows.size()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(push(0, -1, rows.size()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(push(0, 191, rows.size()), ErrorCode::kInvalidArgument);
  EXPECT_EQ(push(0, 0, rows.size() - 1), ErrorCode::kInvalidArgument);
  a.home = 4;
  EXPECT_EQ(attend(good, 0), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(worker_.received().hellos.empty());
}

TEST_F(TierClientTest, SelectionsOfAnotherFormAreRefused) {
  SequenceHandle a = sequence();
  std::vector<float> output;
  LayerItem one = item(a, output, 2);
  const std::vector<std::int32_t> lists(6, -1);
  const auto refused = [&](int topk, const TokenData& selected, std::int32_t count) {
    a.shape.topk = topk;
    one.selected = selected;
    one.selected_count = count;
    return message_of([&] { client_->attend(std::span(&one, 1), 0); });
  };
  EXPECT_EQ(refused(0, {lists.data()}, 3),
            "sequence 7: with selected positions, but the pool attends to all");
  EXPECT_EQ(refused(3, {}, 3), "sequence 7: without selected positions");
  EXPECT_EQ(refused(3, {lists.data()}, 4), "sequence 7: 4 selected positions, expected 1 to 3");
  EXPECT_EQ(refused(3, {lists.data(), 8}, 3),
            "sequence 7: selected positions of 12 bytes, 8 bytes from one to the next");
  EXPECT_TRUE(worker_.received().hellos.empty());
}

TEST(SequenceHandle, TravelsAsJson) {
  const std::vector<std::string> addresses = {"a:1", "b:2"};
  SequenceHandle sequence = small_sequence(0x1234567890ULL, addresses, 300, 128);
  sequence.home = 1;
  const SequenceHandle back = parse_sequence_handle(to_json(sequence));
  EXPECT_EQ(back.id, sequence.id);
  EXPECT_EQ(back.epoch, sequence.epoch);
  EXPECT_EQ(back.token, sequence.token);
  EXPECT_EQ(back.pool, sequence.pool);
  EXPECT_EQ(back.home, 1);
  EXPECT_EQ(back.length, 300);
  EXPECT_EQ(back.addresses, sequence.addresses);
  EXPECT_EQ(back.shape, sequence.shape);
  ASSERT_EQ(back.extents.size(), 3U);
  EXPECT_EQ(back.extents[2].begin, 256);
  EXPECT_EQ(code_of([] { (void)parse_sequence_handle("{}"); }), ErrorCode::kMalformedInput);
}

}  // namespace
}  // namespace tributary
