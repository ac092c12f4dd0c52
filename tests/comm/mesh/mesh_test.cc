// How ranks meet, and what a mesh does when a connection ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "comm/mesh/mesh_messages.h"
#include "comm/wire/codec.h"
#include "core/interface/clock.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/mesh/mesh_ranks.h"
#include "tests/comm/transport/silent_handler.h"

namespace tributary::testing_support {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Communicator> join(const MeshPlace& place, const MeshConfig& config,
                                   Deadline deadline = ample_deadline()) {
  return join_mesh(config, place.transport(), deadline, steady_clock());
}

Status gather(Communicator& communicator, Deadline deadline = ample_deadline()) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), 0);
  for (const int member : communicator.members()) counts[static_cast<std::size_t>(member)] = 8;
  const std::vector<std::byte> send(8);
  std::vector<std::byte> recv(8 * communicator.members().size());
  return communicator.all_gather(send, recv, counts, deadline);
}

class MeshTest : public testing::TestWithParam<MeshNetwork> {
 protected:
  /// The communicator of `rank`, which comes on a thread of its own.
  std::future<std::unique_ptr<Communicator>> come(int rank, int ranks) {
    return std::async(std::launch::async, [this, rank, ranks] { return place_.join(rank, ranks); });
  }
  /// All ranks.
  std::vector<std::unique_ptr<Communicator>> meet(int ranks) {
    std::vector<std::future<std::unique_ptr<Communicator>>> coming;
    for (int rank = 0; rank < ranks; ++rank) coming.push_back(come(rank, ranks));
    std::vector<std::unique_ptr<Communicator>> all;
    for (auto& one : coming) all.push_back(one.get());
    return all;
  }
  void expect_refused(const MeshConfig& config, ErrorCode code, const std::string& text) const {
    const Status status = status_of([&] { (void)join(place_, config); });
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), testing::HasSubstr(text));
  }

  MeshPlace place_{GetParam()};
};

TEST_P(MeshTest, ARankThatStandsAloneNeedsNobody) {
  const auto alone = place_.join(0, 1);
  EXPECT_TRUE(gather(*alone).ok());
  EXPECT_EQ(alone->name(), GetParam() == MeshNetwork::kTcp ? "tcp" : "local");
}

TEST_P(MeshTest, RanksComeInAnyOrder) {
  auto first = come(0, 3);
  auto last = come(2, 3);
  const auto middle = place_.join(1, 3);
  const auto zero = first.get();
  const auto two = last.get();
  std::thread other([&] { EXPECT_TRUE(gather(*two).ok()); });
  std::thread another([&] { EXPECT_TRUE(gather(*zero).ok()); });
  EXPECT_TRUE(gather(*middle).ok());
  other.join();
  another.join();
}

TEST_P(MeshTest, ARankThatEndsBeforeAllHaveComeMayComeAgain) {
  auto zero = come(0, 3);
  {
    MeshConfig config = place_.config(1, 3);
    const Status status =
        status_of([&] { (void)join(place_, config, Deadline::after(milliseconds(100))); });
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
    EXPECT_THAT(status.message(), testing::HasSubstr("ranks 2 have not come"));
  }
  auto two = come(2, 3);
  auto one = come(1, 3);
  std::vector<std::unique_ptr<Communicator>> all;
  all.push_back(zero.get());
  all.push_back(one.get());
  all.push_back(two.get());
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  for (auto& communicator : all) {
    threads.emplace_back([&] { EXPECT_TRUE(gather(*communicator).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(MeshTest, WhoCannotComeIsToldWhy) {
  auto zero = come(0, 3);
  MeshConfig config = place_.config(1, 3);
  config.ranks = 4;
  expect_refused(config, ErrorCode::kInvalidArgument, "rank 1 expects 4 ranks, rank 0 3");
  config = place_.config(1, 3);
  config.secret.fill(8);
  expect_refused(config, ErrorCode::kPermissionDenied, "rank 1 of 3");
  config = place_.config(1, 4);
  config.rank = 3;
  expect_refused(config, ErrorCode::kInvalidArgument, "rank 3 expects 4 ranks, rank 0 3");
  config = place_.config(1, 3);
  config.rank = 3;
  expect_refused(config, ErrorCode::kInvalidArgument, "rank is 3 of 3, expected 0 .. 2");
  // Nothing of that has taken a place.
  auto one = come(1, 3);
  const auto two = place_.join(2, 3);
  const auto all_have_come = zero.get();
  const auto is_there = one.get();
  expect_refused(place_.config(1, 3), ErrorCode::kAlreadyExists, "rank 1 has come before");
}

TEST_P(MeshTest, WhoWasLostWaitsUntilItsSlotIsOpenOrAllStartAgain) {
  auto all = meet(2);
  all[1].reset();
  while (all[0]->look_for_failure().ok()) std::this_thread::yield();
  std::promise<void> waits;
  const std::string why = "rank 1 was lost, and its slot is not open yet";
  MeshConfig config = place_.config(1, 2);
  config.log = [&](const std::string& line) {  // the same line once
    if (line.find(why) != std::string::npos) waits.set_value();
  };
  config.leader = [this] { return place_.leader(); };  // where rank 0 is by then
  auto again = std::async(std::launch::async, [&] { return join(place_, config); });
  waits.get_future().wait();
  all[0].reset();
  place_.listen_anew();
  const auto zero = place_.join(0, 2);
  const auto one = again.get();
  std::thread other([&] { EXPECT_TRUE(gather(*one).ok()); });
  EXPECT_TRUE(gather(*zero).ok());
  other.join();
}

TEST_P(MeshTest, WhoseConnectionsEndIsLostToTheCallsThatNeedIt) {
  auto all = meet(3);
  std::thread other([&] { EXPECT_TRUE(gather(*all[1]).ok()); });
  std::thread another([&] { EXPECT_TRUE(gather(*all[2]).ok()); });
  EXPECT_TRUE(gather(*all[0]).ok());
  other.join();
  another.join();
  all[1].reset();  // as a killed process: its mesh goes with it
  const Status status = gather(*all[2]);
  EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed) << status.message();
  EXPECT_THAT(status.message(), testing::HasSubstr("rank 1 is lost"));
  EXPECT_EQ(all[2]->waited_for(), std::vector{1});
  // Whoever waits for something else hears of it too.
  while (all[0]->look_for_failure().ok()) std::this_thread::yield();
  const std::vector<int> left = {0, 2};
  const auto zero = all[0]->survivors(left, 1);
  const auto two = all[2]->survivors(left, 1);
  std::thread third([&] { EXPECT_TRUE(gather(*two).ok()); });
  EXPECT_TRUE(gather(*zero).ok());
  third.join();
}

TEST_P(MeshTest, WhoGivesUpSaysForWhomItHasWaited) {
  auto all = meet(3);
  std::thread other([&] {
    EXPECT_FALSE(gather(*all[1]).ok());
    EXPECT_TRUE(all[1]->waited_for().empty()) << "it was told";
  });
  EXPECT_EQ(gather(*all[0], Deadline::after(milliseconds(50))).code(),
            ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(all[0]->waited_for(), std::vector{2});
  other.join();
}

TEST_P(MeshTest, TheLastBlocksOfARankThatEndsArrive) {
  constexpr std::size_t kBytes = 32 << 20;  // more than sockets hold
  auto all = meet(3);
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  for (auto& communicator : all) {
    threads.emplace_back([&] {
      check_broadcast(*communicator, 1, 2, kBytes);  // the root receives nothing, and is done first
      communicator.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// A member that has proven the secret and sends what no mesh sends.
TEST_P(MeshTest, WhatAMemberMayNotSendEndsItsConnection) {
  const auto failure = [](std::uint64_t group, ErrorCode code) {
    return std::pair(mesh::MessageType::kFailure,
                     wire::encode(mesh::Failure{.group = group, .code = code, .message = "ended"}));
  };
  using Messages = std::vector<std::pair<mesh::MessageType, std::vector<std::byte>>>;
  Messages many;
  for (std::uint64_t group = 2; group < 2 + 17; ++group) {
    many.push_back(failure(group, ErrorCode::kPoolFull));
  }
  const std::vector<std::pair<Messages, std::string>> cases = {
      {{failure(1, ErrorCode::kOk)}, "rank 1 has failed without an error"},
      {many, "messages for 17 communicators that are not known"},
      {{{mesh::MessageType::kJoin, wire::encode(mesh::MeshJoin{.ranks = 2, .address = {}})}},
       "rank 1 has come before"},
      {{{mesh::MessageType::kMember, wire::encode(mesh::Member{.rank = 1, .address = {}})}},
       "message type 67 from rank 1"},
  };
  for (const auto& [messages, reason] : cases) {
    auto coming = come(0, 2);
    const MeshConfig config = place_.config(1, 2);
    SilentHandler handler;
    const auto transport = place_.transport()({}, handler);
    const PeerId zero = transport->connect(config.leader(), {.id = 1, .secret = config.secret});
    const auto send = [&](mesh::MessageType type, std::vector<std::byte> header) {
      transport->send(zero, {.type = static_cast<std::uint16_t>(type),
                             .header = std::move(header),
                             .payload = {},
                             .sent = {}});
    };
    send(mesh::MessageType::kJoin, wire::encode(mesh::MeshJoin{.ranks = 2, .address = {}}));
    const auto communicator = coming.get();
    for (const auto& [type, header] : messages) send(type, header);
    Status lost;
    for (const Deadline deadline = ample_deadline(); lost.ok() && !deadline.expired();) {
      lost = communicator->look_for_failure();
      std::this_thread::yield();
    }
    EXPECT_EQ(lost.code(), ErrorCode::kWorkerFailed);
    EXPECT_THAT(lost.message(), testing::HasSubstr(reason));
    place_.listen_anew();
  }
}

TEST_P(MeshTest, AnInterruptedCallEndsAndTellsItsPeers) {
  auto all = meet(2);
  std::thread other([&] {
    const Status status = gather(*all[1]);
    EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed) << status.message();
    EXPECT_THAT(status.message(), testing::HasSubstr("rank 0: worker 7 is gone"));
  });
  all[0]->interrupt({ErrorCode::kWorkerFailed, "worker 7 is gone"});
  EXPECT_EQ(gather(*all[0]).code(), ErrorCode::kWorkerFailed);
  other.join();
}

TEST_P(MeshTest, CallsOfDifferentKindsDoNotMatch) {
  auto all = meet(2);
  std::thread other([&] {
    std::byte byte{};
    EXPECT_FALSE(all[1]->broadcast(std::span(&byte, 1), 1, ample_deadline()).ok() &&
                 gather(*all[1]).ok());
  });
  const Status status = gather(*all[0]);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
  EXPECT_THAT(status.message(), testing::HasSubstr("broadcast"));
  other.join();
}

INSTANTIATE_TEST_SUITE_P(Networks, MeshTest,
                         testing::Values(MeshNetwork::kLocal, MeshNetwork::kTcp),
                         [](const auto& info) {
                           return info.param == MeshNetwork::kTcp ? "Tcp" : "Local";
                         });

}  // namespace
}  // namespace tributary::testing_support
