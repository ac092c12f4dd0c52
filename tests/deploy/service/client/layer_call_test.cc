// A layer call's use of its caller's memory: where it reads queries and rows, and that it touches
// none of it once the call has returned.
#include "deploy/service/client/layer_call.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/local/local_transport.h"
#include "comm/wire/codec.h"
#include "tests/deploy/service/client/client_fixture.h"

namespace tributary {
namespace {

using test::FakeWorker;
using test::kFar;
using test::kSmallInput;
using test::kSmallOutput;
using test::kSmallRowBytes;

constexpr std::size_t kQueryBytes = kSmallInput - kSmallRowBytes;
class LayerCallTest : public test::ClientFixture {};

TEST_F(LayerCallTest, QueriesAndRowsComeFromWhereTheyLie) {
  std::vector<std::byte> received;
  worker_.on_round = [&](const wire::LayerRequest& round, std::span<const std::byte> payload) {
    received.assign(payload.begin(), payload.end());
    FakeWorker::RoundAnswer answer;
    answer.reply.items.assign(round.items.size(), ErrorCode::kOk);
    answer.payload.resize(5 * kSmallOutput * sizeof(float));
    return std::optional(answer);
  };
  std::vector<std::byte> memory(4096);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 + i / 9);
  SequenceHandle a = sequence(1), b = sequence(2), c = sequence(3);
  std::vector<float> x, y, z;
  std::vector<LayerItem> items = {item(a, x, 2), item(b, y, 2), item(c, z, 1)};
  items[0].query = {&memory[5], kQueryBytes + 11};  // gaps, and no alignment
  items[0].row = {&memory[1001], kSmallRowBytes + 3};
  items[1].query = {&memory[2000]};  // dense
  items[1].row = {&memory[2001 + 2 * kQueryBytes]};
  items[2].query = {&memory[3000]};  // the row right behind it
  items[2].row = {&memory[3000 + kQueryBytes]};
  client_->attend(items, 0);
  std::vector<std::byte> expected;
  const auto add = [&](std::size_t at, std::size_t bytes) {
    expected.insert(expected.end(), &memory[at], &memory[at + bytes]);
  };
  for (const std::size_t t : {0, 1}) {
    add(5 + t * (kQueryBytes + 11), kQueryBytes);
    add(1001 + t * (kSmallRowBytes + 3), kSmallRowBytes);
  }
  for (const std::size_t t : {0, 1}) {
    add(2000 + t * kQueryBytes, kQueryBytes);
    add(2001 + 2 * kQueryBytes + t * kSmallRowBytes, kSmallRowBytes);
  }
  add(3000, kSmallInput);
  EXPECT_EQ(received, expected);
}

/// The leader of their pool takes them into one round.
TEST_F(LayerCallTest, MessagesOfACallSayHowManyTheyAre) {
  FakeWorker other;
  FakeWorker stranger;
  SequenceHandle a = sequence(1), b = sequence(2), c = sequence(3);
  b.addresses = {other.address()};
  c.addresses = {stranger.address()};
  c.pool = "another";
  std::vector<float> x, y, z;
  const std::vector<LayerItem> items = {item(a, x), item(b, y), item(c, z)};
  client_->attend(items, 0);
  client_->attend(items, 1);
  const auto one = worker_.received().rounds, two = other.received().rounds;
  ASSERT_EQ(one.size(), 2U);
  ASSERT_EQ(two.size(), 2U);
  EXPECT_NE(one[0].part.call, one[1].part.call);
  for (const std::size_t call : {0U, 1U}) {
    EXPECT_EQ(one[call].part.call, two[call].part.call);
    EXPECT_EQ(one[call].part.messages, 2U);
    EXPECT_EQ(two[call].part.messages, 2U);
    EXPECT_EQ(stranger.received().rounds.at(call).part.messages, 1U);
  }
}

TEST_F(LayerCallTest, ALateReplyWritesNothing) {
  worker_.on_round = [](const wire::LayerRequest&, auto) {
    return std::optional<FakeWorker::RoundAnswer>();
  };
  SequenceHandle a = sequence();
  for (const auto patience : test::kPatiences) {
    // Freed before the reply arrives: the address sanitizer would report a use.
    std::vector<float> output;
    std::vector<std::byte> input(kSmallInput);
    LayerItem one = item(a, output);
    one.query = {input.data()};
    one.row = {input.data() + kQueryBytes};
    EXPECT_EQ(code_of([&] { client_->attend(std::span(&one, 1), 0, Deadline::after(patience)); }),
              ErrorCode::kDeadlineExceeded);
    if (!worker_.received().rounds.empty()) break;
  }
  const auto asked = worker_.received().rounds;
  ASSERT_FALSE(asked.empty());
  FakeWorker::RoundAnswer late;
  late.reply.request = asked.front().request;
  late.reply.items = {ErrorCode::kOk};
  late.payload.resize(kSmallOutput * sizeof(float));
  worker_.send(late);
  client_->truncate(a, 100);  // the reply has arrived
}

/// The worker's thread is kept busy, so that it does not take what is sent to it. In one process,
/// since a system's socket would take this little.
TEST_F(LayerCallTest, WhatAWorkerDoesNotTakeIsNotReadLater) {
  const MakeTransport make_transport = [network = std::make_shared<LocalNetwork>()](
                                           const TransportConfig& config,
                                           TransportHandler& handler) {
    return make_local_transport(network, config, handler);
  };
  std::promise<void> busy;
  std::promise<void> go_on;
  FakeWorker worker(make_transport, "worker:0");
  TierClient client(test::without_control_plane(), make_transport);
  worker.on_control = [&, first = true](const wire::Control&) mutable {
    if (std::exchange(first, false)) {
      busy.set_value();
      go_on.get_future().wait();
    }
    return std::optional<wire::ControlReply>();
  };
  SequenceHandle a = sequence(1);
  SequenceHandle b = sequence(2);
  a.addresses = b.addresses = {worker.address()};
  auto truncated = std::async(std::launch::async, [&] {
    return code_of([&] { client.truncate(a, 100, Deadline::after(kFar)); });
  });
  busy.get_future().wait();
  for (const auto patience : test::kPatiences) {
    std::vector<float> output;
    std::vector<std::byte> input(kSmallInput);
    LayerItem one = item(b, output);
    one.query = {input.data()};
    one.row = {input.data() + kQueryBytes};
    // Once its connection is cut, it is made again in vain.
    EXPECT_THAT(code_of([&] { client.attend(std::span(&one, 1), 0, Deadline::after(patience)); }),
                testing::AnyOf(ErrorCode::kDeadlineExceeded, ErrorCode::kUnavailable));
    if (patience > std::chrono::seconds(1)) break;  // the first may pass before it is sent
  }
  go_on.set_value();  // the worker welcomes the client again
  EXPECT_EQ(truncated.get(), ErrorCode::kUnavailable) << "its connection was cut";
}

/// A transport whose thread is the test.
class PlayedTransport final : public Transport {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "played"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }
  [[nodiscard]] PeerId connect(const std::string& /*address*/,
                               const Introduction& /*introduction*/) override {
    const std::scoped_lock lock(mutex_);
    connecting_ = true;
    changed_.notify_all();
    return 1;
  }
  void send(PeerId /*peer*/, OutgoingMessage message) override {
    const std::scoped_lock lock(mutex_);
    sent_.push_back(std::move(message));
    changed_.notify_all();
  }
  void disconnect(PeerId /*peer*/) override {
    const std::scoped_lock lock(mutex_);
    disconnected_ = true;
    changed_.notify_all();
  }

  /// Whether there is a connection; false when `call` has ended without one.
  bool wait_connecting(const std::future<ErrorCode>& call) {
    return wait([this] { return connecting_; }, call);
  }
  /// The message that was sent as the n-th; null when `call` has ended without it.
  OutgoingMessage* wait_sent(std::size_t n, const std::future<ErrorCode>& call) {
    return wait([&] { return sent_.size() > n; }, call) ? &sent_.at(n) : nullptr;
  }
  void wait_disconnected() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kFar, [&] { return disconnected_; }));
  }
  [[nodiscard]] std::size_t sent() {
    const std::scoped_lock lock(mutex_);
    return sent_.size();
  }

 private:
  bool wait(const std::function<bool()>& condition, const std::future<ErrorCode>& call) {
    constexpr std::chrono::milliseconds kPause{1};
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kPause, condition)) {
      // Nobody announces a call's end.
      if (call.wait_for(std::chrono::seconds(0)) == std::future_status::ready) break;
    }
    return condition();
  }

  const std::string address_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OutgoingMessage> sent_;
  bool connecting_ = false;
  bool disconnected_ = false;
};

/// A client whose worker is the test, and one call of it.
class Scene {
 public:
  explicit Scene(Deadline deadline)
      : call(std::async(std::launch::async, [this, deadline] {
          SequenceHandle sequence =
              test::small_sequence(7, std::vector<std::string>{"worker:1"}, 200, 200);
          std::vector<std::byte> input(kSmallInput, std::byte{1});
          std::vector<float> output(kSmallOutput, -1);
          const LayerItem item{.sequence = &sequence,
                               .tokens = 1,
                               .query = {input.data()},
                               .row = {input.data() + kQueryBytes},
                               .output = output.data()};
          return code_of([&] { client_.attend(std::span(&item, 1), 0, deadline); });
        })) {}

  void welcome() {
    (void)say(wire::MessageType::kWelcome,
              wire::encode(wire::Welcome{.outcome = {}, .shape = test::small_shape()}), 0);
  }
  std::optional<Landing> say(wire::MessageType type, const std::vector<std::byte>& header,
                             std::size_t payload_bytes) {
    return handler_->on_message(1, static_cast<std::uint16_t>(type), header, payload_bytes);
  }
  /// The connection has opened and the greeting was sent; false where the deadline passed before.
  bool wait_greeting() {
    if (!transport().wait_connecting(call)) return false;
    handler_->on_open(1, {.id = 7});
    return transport().wait_sent(0, call) != nullptr;
  }
  /// The greeting was sent and answered; then the layer's message, or null where the deadline
  /// passed before.
  OutgoingMessage* wait_round() {
    if (!wait_greeting()) return nullptr;
    welcome();
    return transport().wait_sent(1, call);
  }
  [[nodiscard]] bool waits() const {
    return call.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }
  PlayedTransport& transport() { return *transport_; }

 private:
  PlayedTransport* transport_ = nullptr;
  TransportHandler* handler_ = nullptr;
  TierClient client_{test::without_control_plane(),
                     [this](const TransportConfig&, TransportHandler& handler) {
                       auto transport = std::make_unique<PlayedTransport>();
                       transport_ = transport.get();
                       handler_ = &handler;
                       return transport;
                     }};

 public:
  std::future<ErrorCode> call;  // begins when all else is there, and ends before it
};

/// Plays a scene with ever longer deadlines, until what has to come before them has come: `scene`
/// says so.
void play(const std::function<bool(Scene&)>& scene) {
  for (const auto patience : test::kPatiences) {
    Scene stage(Deadline::after(patience));
    const bool played = scene(stage);
    EXPECT_EQ(stage.call.get(), ErrorCode::kDeadlineExceeded);
    if (played) return;
  }
  ADD_FAILURE() << "the deadline always passed too early";
}

TEST(CallersMemory, IsNotReadAfterADeadlineThatPassesBeforeTheWelcome) {
  play([](Scene& scene) {
    if (!scene.wait_greeting()) return false;
    scene.call.wait();
    scene.welcome();
    EXPECT_EQ(scene.transport().sent(), 1U) << "the greeting alone";
    return true;
  });
}

TEST(CallersMemory, IsGivenBackByTheTransportBeforeTheCallReturns) {
  play([](Scene& scene) {
    OutgoingMessage* const round = scene.wait_round();
    if (round == nullptr) return false;
    scene.transport().wait_disconnected();
    EXPECT_TRUE(scene.waits()) << "the transport has not let go of it";
    std::vector<std::byte> read;
    for (const auto piece : round->payload) read.insert(read.end(), piece.begin(), piece.end());
    EXPECT_EQ(read, std::vector<std::byte>(kSmallInput, std::byte{1}));
    round->sent({ErrorCode::kUnavailable, "closed"});
    return true;
  });
}

TEST(CallersMemory, IsWrittenByAReplyThatLandsAtTheDeadlineBeforeTheCallReturns) {
  play([](Scene& scene) {
    OutgoingMessage* const round = scene.wait_round();
    if (round == nullptr) return false;
    const auto asked = wire::decode<wire::LayerRequest>(round->header);
    round->sent({});
    const wire::LayerReply reply{
        .request = asked.request, .crc32c = 0, .items = {ErrorCode::kOk}, .message = {}};
    const auto landing = scene.say(wire::MessageType::kLayerReply, wire::encode(reply),
                                   kSmallOutput * sizeof(float));
    if (!landing) return false;  // the deadline passed meanwhile
    scene.transport().wait_disconnected();
    EXPECT_TRUE(scene.waits());
    for (const auto piece : landing->pieces) std::memset(piece.data(), 5, piece.size());
    landing->done({ErrorCode::kUnavailable, "closed"});
    return true;
  });
}

}  // namespace
}  // namespace tributary
