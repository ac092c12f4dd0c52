// Orders over the data plane: the channels' suite over whole data planes, and interruptions.
#include "deploy/service/worker/home/leader_port.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/local/local_transport.h"
#include "comm/local/run_ranks.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/wire/access_token.h"
#include "comm/wire/codec.h"
#include "core/interface/manual_clock.h"
#include "tests/comm/transport/relay.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/pool/order_channel_conformance.h"
#include "tests/deploy/service/worker/plane_rank.h"

namespace tributary::test {
namespace {

void data_plane_ranks(int ranks, const std::function<void(const OrderRank&)>& body) {
  const auto network = std::make_shared<LocalNetwork>();
  std::barrier together(ranks);
  std::string leader_address;
  run_ranks(ranks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    PlaneRank mine(rank, ranks);
    mine.open("rank:0", [&](const TransportConfig& config, TransportHandler& handler) {
      return make_local_transport(network, config, handler);
    });
    if (rank == 0) leader_address = mine.plane->address();
    together.arrive_and_wait();
    if (rank > 0) {
      mine.remote.connect(leader_address, {.rank = rank});
    } else {
      EXPECT_TRUE(mine.inbox.wait_joined(Deadline::after(std::chrono::seconds(30))).ok());
    }
    body(
        {.communicator = communicator, .channel = mine.port, .leave = [&] { mine.plane.reset(); }});
    together.arrive_and_wait();
  });
}

INSTANTIATE_TEST_SUITE_P(DataPlane, OrderChannelConformance,
                         testing::Values(RunOrderRanks(data_plane_ranks)));

/// A transport that sends later, from its own thread.
class SlowTransport final : public Transport {
 public:
  [[nodiscard]] std::string_view name() const noexcept override { return "slow"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }
  [[nodiscard]] PeerId connect(const std::string& /*to*/, const Introduction& /*as*/) override {
    return 1;
  }
  void send(PeerId /*peer*/, OutgoingMessage message) override {
    const bool order = message.type == static_cast<std::uint16_t>(wire::MessageType::kPoolOrder);
    if (order) ++orders;
    threads_.emplace_back([this, message = std::move(message)] {
      ++sent;
      if (message.sent) message.sent({});
    });
  }
  void disconnect(PeerId /*peer*/) override {}

  std::atomic<int> sent = 0;
  std::atomic<int> orders = 0;

 private:
  std::string address_;
  std::vector<std::jthread> threads_;
};

/// Otherwise the leader's own share of the round could keep the order from leaving.
TEST(LocalLeaderTest, AnOrderHasLeftWhenSendReturns) {
  PlaneRank mine(0, 3);
  SlowTransport transport;  // goes first: its threads use the rest
  mine.peers.open([&]() -> Transport& { return transport; });
  for (const int rank : {1, 2}) mine.local.join(static_cast<PeerId>(rank), {.rank = rank}, {});
  const std::vector<std::byte> order(100);
  for (int i = 1; i <= 50; ++i) {
    ASSERT_TRUE(mine.local.send(order, Deadline::after(std::chrono::hours(1))).ok());
    EXPECT_EQ(transport.sent, 2 * i);
  }
  mine.local.leave_out(1, {ErrorCode::kWorkerFailed, "silent"});
  mine.local.leave_out(2, {ErrorCode::kWorkerFailed, "silent"});
  const int sent = transport.sent;
  EXPECT_TRUE(mine.local.send(order, Deadline::after(std::chrono::hours(1))).ok()) << "to nobody";
  mine.local.refuse(2, {});
  mine.local.answer(2, {});
  EXPECT_LE(transport.sent, sent + 2) << "no more than that the connections end";
}

TEST(LocalLeaderTest, AnotherWorkerJoinsWhereOneIsExpected) {
  PlaneRank mine(0, 2);
  SlowTransport transport;
  mine.peers.open([&]() -> Transport& { return transport; });
  const auto join = [&](PeerId peer) {
    return status_of([&] { mine.local.join(peer, {.rank = 1}, {}); }).code();
  };
  const auto sent_by_an_order = [&] {
    const int before = transport.orders;
    EXPECT_TRUE(
        mine.local.send(std::vector<std::byte>(9), Deadline::after(std::chrono::hours(1))).ok());
    return transport.orders - before;
  };
  EXPECT_EQ(join(1), ErrorCode::kOk);
  EXPECT_EQ(sent_by_an_order(), 1);
  mine.local.leave_out(1, {});
  EXPECT_EQ(join(2), ErrorCode::kPermissionDenied);
  mine.local.expect(1);
  EXPECT_EQ(join(3), ErrorCode::kOk);
  EXPECT_EQ(join(4), ErrorCode::kAlreadyExists);
  EXPECT_EQ(sent_by_an_order(), 0) << "its first order has the table";
  mine.local.take_in(1);
  EXPECT_EQ(sent_by_an_order(), 1);
}

TEST(LocalLeaderTest, AVerdictIsForOneWorker) {
  PlaneRank mine(0, 3);
  SlowTransport transport;
  mine.peers.open([&]() -> Transport& { return transport; });
  for (const int rank : {1, 2}) mine.local.join(static_cast<PeerId>(rank), {.rank = rank}, {});
  const auto say = [&](int rank, std::vector<std::int32_t> others) {
    static_cast<void>(mine.local.receive(
        {.role = Peers::Role::kWorker, .rank = rank}, wire::MessageType::kWaitedFor,
        wire::encode(wire::WaitedFor{.ranks = std::move(others)}), 0));
  };
  EXPECT_EQ(mine.local.accused(), std::nullopt);
  say(1, {2});
  say(2, {1});
  EXPECT_EQ(mine.local.accused(), 2);
  mine.local.regrouped(1);
  EXPECT_EQ(mine.local.accused(), std::nullopt) << "the other end stays";
  EXPECT_EQ(status_of([&] { say(1, {3}); }).code(), ErrorCode::kMalformedInput);
  EXPECT_EQ(status_of([&] { say(1, {-1}); }).code(), ErrorCode::kMalformedInput);
}

TEST(PoolsOwnToken, DoesNotTravel) {
  PlaneRank leader(0, 2);
  leader.open("127.0.0.1:0", make_tcp_transport);
  testing_support::Relay relay(leader.plane->address());
  PlaneRank other(1, 2);
  other.open("127.0.0.1:0", make_tcp_transport);
  other.remote.connect(relay.address(), {.rank = 1});
  EXPECT_TRUE(leader.inbox.wait_joined(Deadline::after(std::chrono::seconds(30))).ok());
  const auto said = relay.client_said();
  const wire::Token token = wire::access_token({}, wire::kPoolItself);
  const auto secret = std::as_bytes(std::span(token));
  EXPECT_EQ(std::search(said.begin(), said.end(), secret.begin(), secret.end()), said.end());
  other.plane.reset();
}

class RemoteLeaderTest : public testing::Test {
 protected:
  /// Announces order `number`, whose payload has `number` bytes; returns its landing.
  Landing announce(std::uint64_t number) {
    const auto header = encode(wire::PoolOrder{.number = number});
    return mine.remote.receive(kLeader, wire::MessageType::kPoolOrder, header, number).value();
  }
  static void arrive(const Landing& landing, std::uint8_t value) {
    std::ranges::fill(landing.pieces.at(0), std::byte{value});
    landing.done({});
  }
  Status wait(std::chrono::milliseconds patience = std::chrono::milliseconds(0)) {
    return mine.remote.wait(order, Deadline::after(patience), [] { return Status(); });
  }

  static constexpr Peers::Peer kLeader{.role = Peers::Role::kLeader};
  PlaneRank mine{1, 2};
  std::vector<std::byte> order;
};

TEST_F(RemoteLeaderTest, APayloadThatOvertakesAnotherWaitsForIt) {
  const Landing first = announce(1);
  const Landing second = announce(2);
  const Landing third = announce(3);
  arrive(third, 33);
  arrive(second, 22);
  EXPECT_EQ(wait().code(), ErrorCode::kDeadlineExceeded);
  arrive(first, 11);
  ASSERT_TRUE(wait().ok());
  EXPECT_EQ(order, std::vector<std::byte>(1, std::byte{11}));
  ASSERT_TRUE(wait().ok());
  EXPECT_EQ(order, std::vector<std::byte>(2, std::byte{22}));
  ASSERT_TRUE(wait().ok());
  EXPECT_EQ(order, std::vector<std::byte>(3, std::byte{33}));
  EXPECT_EQ(wait().code(), ErrorCode::kDeadlineExceeded);
}

TEST(RemoteLeaderInSimulatedTime, AFollowerThatStoodStillWaitsForOrdersAnew) {
  using std::chrono::seconds;
  ManualClock clock{Time(std::chrono::hours(1))};
  const Time begin = clock.now();
  PlaneRank mine(1, 2, clock);
  std::vector<std::byte> order;
  int looks = 0;
  const auto wait = [&](const std::function<void()>& first) {
    looks = 0;
    return mine.remote.wait(order, Deadline(clock.now() + seconds(20), seconds(2)), [&] {
      if (++looks == 1) first();
      return Status();
    });
  };
  EXPECT_EQ(wait([] {}).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(clock.now(), begin + seconds(20));
  // The whole process stands still for an hour; then nothing comes, or an order after a second.
  const auto stand_still = [&] { clock.advance(std::chrono::hours(1)); };
  EXPECT_EQ(wait(stand_still).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_GE(clock.now(), begin + std::chrono::hours(1) + seconds(22));
  EXPECT_LT(clock.now(), begin + std::chrono::hours(1) + seconds(23));
  EXPECT_TRUE(wait([&] {
                stand_still();
                clock.after(seconds(1), [&] {
                  const auto header = encode(wire::PoolOrder{.number = 1});
                  mine.remote
                      .receive({.role = Peers::Role::kLeader}, wire::MessageType::kPoolOrder,
                               header, 1)
                      .value()
                      .done({});
                });
              }).ok());
}

TEST_F(RemoteLeaderTest, WhatCameBeforeTheLeaderWentIsCarriedOut) {
  arrive(announce(1), 11);
  const Landing half = announce(2);
  half.done({ErrorCode::kUnavailable, "closed"});
  mine.remote.lost(kLeader, {ErrorCode::kUnavailable, "closed"});
  EXPECT_TRUE(wait().ok());
  const Status lost = wait(std::chrono::hours(1));
  EXPECT_EQ(lost.code(), ErrorCode::kPoolLost);
  EXPECT_EQ(lost.message(), "worker 0, the leader, is gone: closed");
}

TEST_F(RemoteLeaderTest, AWorkerWithoutWhichThePoolGoesOnHearsWhy) {
  const auto hear = [&](const wire::Left& left) {
    return mine.remote.receive(kLeader, wire::MessageType::kLeft, encode(left), 0);
  };
  arrive(announce(1), 11);
  EXPECT_FALSE(hear({{ErrorCode::kWorkerFailed, "it was silent"}}).has_value());
  mine.remote.lost(kLeader, {ErrorCode::kUnavailable, "closed"});
  EXPECT_TRUE(wait().ok()) << "what came before is carried out";
  const Status lost = wait(std::chrono::hours(1));
  EXPECT_EQ(lost.code(), ErrorCode::kPoolLost);
  EXPECT_EQ(lost.message(), "the pool goes on without worker 1: it was silent");
}

TEST_F(RemoteLeaderTest, AWorkerThatHasAskedLeavesWithoutAnError) {
  arrive(announce(1), 11);
  EXPECT_FALSE(
      mine.remote.receive(kLeader, wire::MessageType::kLeft, encode(wire::Left{}), 0).has_value());
  mine.remote.lost(kLeader, {ErrorCode::kUnavailable, "closed"});
  EXPECT_TRUE(wait().ok());
  EXPECT_EQ(order.size(), 1U);
  EXPECT_TRUE(wait(std::chrono::hours(1)).ok());
  EXPECT_TRUE(order.empty());
}

TEST_F(RemoteLeaderTest, NumbersAndSizesThatCannotBeEndTheConnection) {
  const auto refused = [&](std::uint64_t number, std::size_t bytes) {
    const auto header = encode(wire::PoolOrder{.number = number});
    return code_of([&] {
             (void)mine.remote.receive(kLeader, wire::MessageType::kPoolOrder, header, bytes);
           }) == ErrorCode::kMalformedInput;
  };
  EXPECT_TRUE(refused(0, 1));
  EXPECT_TRUE(refused(9, 1));
  EXPECT_TRUE(refused(1, 0));
  EXPECT_TRUE(refused(1, std::size_t{1} << 40));
  EXPECT_FALSE(refused(8, 1));
  arrive(announce(1), 1);
  ASSERT_TRUE(wait().ok());
  EXPECT_TRUE(refused(1, 1));  // again
  EXPECT_FALSE(refused(9, 1));
}

TEST_F(RemoteLeaderTest, RanksKeepToTheirPart) {
  EXPECT_EQ(mine.remote.send(order, Deadline::after(std::chrono::hours(1))).code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(mine.local.wait(order, Deadline::after(std::chrono::hours(1)), [] { return Status(); })
                .code(),
            ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { mine.remote.join(9, {.rank = 1}, {}); }), ErrorCode::kMalformedInput);
}

}  // namespace
}  // namespace tributary::test
