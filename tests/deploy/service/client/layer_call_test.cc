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

}  // namespace
}  // namespace tributary
