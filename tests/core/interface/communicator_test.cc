// The base class, which validates and counts, over an implementation that only records its calls.
#include "core/interface/communicator.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {
namespace {

class RecordingCommunicator final : public Communicator {
 public:
  RecordingCommunicator(int rank, int size) : Communicator(rank, size) {}
  RecordingCommunicator(int rank, int size, std::span<const int> members)
      : Communicator(rank, size, members) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "recording"; }

  Status next;                     // what the next call returns
  Status told;                     // what a peer has reported
  Status told_meanwhile;           // what it reports while this rank is poisoned
  std::vector<std::string> calls;  // those that got through
  std::vector<Status> poisons;

 protected:
  Status do_collective(const Collective& call, Deadline /*at*/) override {
    calls.emplace_back(collective_name(call.kind));
    return next;
  }
  Status do_complete(Deadline /*at*/) override {
    calls.emplace_back("complete");
    return next;
  }
  void do_poison(const Status& reason) override {
    poisons.push_back(reason);
    if (!told_meanwhile.ok()) told = told_meanwhile;
  }
  Status do_look_for_failure() override { return told; }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t /*generation*/) override {
    next.throw_if_error();
    return std::make_unique<RecordingCommunicator>(rank(), size(), members);
  }
};

constexpr int kRank = 1;
constexpr int kSize = 3;

class CommunicatorFront : public testing::Test {
 protected:
  /// `status` refuses an argument; nothing got through, and the communicator is poisoned by it.
  void expect_refused(const Status& status, const std::string& message) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(status.message(), message);
    EXPECT_TRUE(communicator_.calls.empty());
    EXPECT_TRUE(communicator_.poisoned());
    ASSERT_EQ(communicator_.poisons.size(), 1U);
    EXPECT_EQ(communicator_.poisons[0].message(), message);
    EXPECT_TRUE(communicator_.traffic() == Traffic());
  }

  RecordingCommunicator communicator_{kRank, kSize};
  Deadline deadline_ = Deadline::after(std::chrono::hours(1));
  std::array<std::byte, 64> send_{};
  std::array<std::byte, 64> recv_{};
  using Counts = std::vector<std::size_t>;

  Status all_gather(std::size_t send, std::size_t recv, const Counts& counts) {
    return communicator_.all_gather(std::span(send_).first(send), std::span(recv_).first(recv),
                                    counts, deadline_);
  }
  Status all_to_all(std::size_t send, const Counts& send_counts, std::size_t recv,
                    const Counts& recv_counts) {
    return communicator_.all_to_all(std::span(send_).first(send), send_counts,
                                    std::span(recv_).first(recv), recv_counts, deadline_);
  }
};

TEST_F(CommunicatorFront, KnowsItsPlace) {
  EXPECT_EQ(communicator_.rank(), kRank);
  EXPECT_EQ(communicator_.size(), kSize);
  EXPECT_FALSE(communicator_.poisoned());
}

TEST_F(CommunicatorFront, PassesGoodCallsOnAndCountsWhatGoesToOthers) {
  EXPECT_TRUE(communicator_.broadcast(std::span(recv_).first(10), 0, deadline_).ok());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kBroadcast], 0U) << "the root sends";
  EXPECT_TRUE(communicator_.broadcast(std::span(recv_).first(10), kRank, deadline_).ok());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kBroadcast], 20U);
  EXPECT_TRUE(all_gather(4, 9, {2, 4, 3}).ok());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kAllGather], 8U);
  EXPECT_TRUE(all_gather(4, 9, {2, 4, 3}).ok());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kAllGather], 16U) << "of all calls";
  EXPECT_TRUE(all_to_all(11, {5, 4, 2}, 6, {1, 4, 1}).ok());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kAllToAll], 7U) << "4 bytes stay here";
  EXPECT_EQ(communicator_.calls, (std::vector<std::string>{"broadcast", "broadcast", "all_gather",
                                                           "all_gather", "all_to_all"}));
  EXPECT_FALSE(communicator_.poisoned());
}

TEST_F(CommunicatorFront, PassesEmptyBlocksOn) {
  EXPECT_TRUE(communicator_.broadcast({}, 2, deadline_).ok());
  EXPECT_TRUE(all_gather(0, 0, {0, 0, 0}).ok());
  EXPECT_TRUE(all_to_all(0, {0, 0, 0}, 0, {0, 0, 0}).ok());
  EXPECT_EQ(communicator_.calls.size(), 3U) << "a rank without data still takes part";
}

TEST_F(CommunicatorFront, RefusesARootThatIsNoRank) {
  expect_refused(communicator_.broadcast(recv_, kSize, deadline_),
                 "broadcast: root is 3, expected 0 .. 2");
}
TEST_F(CommunicatorFront, RefusesANegativeRoot) {
  expect_refused(communicator_.broadcast(recv_, -1, deadline_),
                 "broadcast: root is -1, expected 0 .. 2");
}
TEST_F(CommunicatorFront, RefusesAGatherOfTooFewCounts) {
  expect_refused(all_gather(4, 4, {0, 4}), "all_gather: number of counts is 2, expected 3");
}
TEST_F(CommunicatorFront, RefusesAGatherOfAnotherSend) {
  expect_refused(all_gather(5, 9, {2, 4, 3}), "all_gather: size of send is 5, expected 4");
}
TEST_F(CommunicatorFront, RefusesAGatherOfAnotherRecv) {
  expect_refused(all_gather(4, 8, {2, 4, 3}), "all_gather: size of recv is 8, expected 9");
}
TEST_F(CommunicatorFront, RefusesTooManySendCounts) {
  expect_refused(all_to_all(1, {0, 0, 0, 1}, 0, {0, 0, 0}),
                 "all_to_all: number of send counts is 4, expected 3");
}
TEST_F(CommunicatorFront, RefusesTooFewReceiveCounts) {
  expect_refused(all_to_all(0, {0, 0, 0}, 0, {}),
                 "all_to_all: number of receive counts is 0, expected 3");
}
TEST_F(CommunicatorFront, RefusesAnAllToAllOfAnotherSend) {
  expect_refused(all_to_all(3, {1, 1, 2}, 3, {1, 1, 1}),
                 "all_to_all: size of send is 3, expected 4");
}
TEST_F(CommunicatorFront, RefusesAnAllToAllOfAnotherRecv) {
  expect_refused(all_to_all(4, {1, 1, 2}, 4, {1, 1, 1}),
                 "all_to_all: size of recv is 4, expected 3");
}

TEST_F(CommunicatorFront, RefusesABlockToItselfOfTwoSizes) {
  expect_refused(all_to_all(4, {1, 1, 2}, 4, {1, 2, 1}),
                 "all_to_all: rank 1 sends 1 bytes to itself, but expects 2");
}
TEST_F(CommunicatorFront, RefusesABroadcastWithTwoRoles) {
  expect_refused(communicator_.run({.root = 0, .send = send_, .recv = recv_}, deadline_),
                 "broadcast: size of send is 64, expected 0");
}
TEST_F(CommunicatorFront, RefusesABroadcastThatTheRootReceives) {
  expect_refused(communicator_.run({.root = kRank, .send = send_, .recv = recv_}, deadline_),
                 "broadcast: size of recv on the root is 64, expected 0");
}

TEST_F(CommunicatorFront, ADeadlineThatHasPassedEndsItBeforeAnythingIsSent) {
  deadline_ = Deadline(std::chrono::steady_clock::now());
  const Status status = all_gather(4, 9, {2, 4, 3});
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "all_gather: the deadline passed before rank 1 began");
  EXPECT_TRUE(communicator_.calls.empty());
  EXPECT_TRUE(communicator_.poisoned());
}

TEST_F(CommunicatorFront, ARankThatIsLateBecauseOfAPeerReportsThePeer) {
  communicator_.told = Status(ErrorCode::kPoolFull, "rank 0: no memory");
  deadline_ = Deadline(std::chrono::steady_clock::now());
  EXPECT_EQ(all_gather(4, 9, {2, 4, 3}).message(), "rank 0: no memory");
  EXPECT_TRUE(communicator_.calls.empty());
}

TEST_F(CommunicatorFront, OfTwoRanksThatAreLateAtOnceTheFirstIsTheCauseOfBoth) {
  communicator_.told_meanwhile = Status(ErrorCode::kDeadlineExceeded, "rank 0 is late");
  deadline_ = Deadline(std::chrono::steady_clock::now());
  for (int call = 0; call < 2; ++call) {
    EXPECT_EQ(all_gather(4, 9, {2, 4, 3}).message(), "rank 0 is late");
  }
  EXPECT_EQ(communicator_.poisons.size(), 1U);
}

TEST_F(CommunicatorFront, TheFirstFailureEndsItForGood) {
  communicator_.next = Status(ErrorCode::kDeadlineExceeded, "rank 2 is missing");
  EXPECT_EQ(all_gather(4, 9, {2, 4, 3}).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(communicator_.poisoned());
  EXPECT_EQ(communicator_.traffic()[CollectiveKind::kAllGather], 0U) << "what failed was not sent";
  communicator_.next = Status();
  const auto later = {communicator_.broadcast(recv_, 0, deadline_),
                      communicator_.broadcast(recv_, 99, deadline_), all_gather(4, 9, {2, 4, 3}),
                      all_to_all(3, {1, 1, 1}, 3, {1, 1, 1})};
  for (const Status& status : later) {
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(), "rank 2 is missing");
  }
  EXPECT_EQ(communicator_.calls, std::vector<std::string>{"all_gather"}) << "nothing more is sent";
  EXPECT_EQ(communicator_.poisons.size(), 1U) << "the peers are told once";
}

TEST_F(CommunicatorFront, AFailureThatCompleteFindsEndsItToo) {
  EXPECT_TRUE(all_gather(4, 9, {2, 4, 3}).ok());
  EXPECT_TRUE(communicator_.complete(deadline_).ok());
  communicator_.next = Status(ErrorCode::kWorkerFailed, "rank 2 is gone");
  EXPECT_EQ(communicator_.complete(deadline_).code(), ErrorCode::kWorkerFailed);
  EXPECT_TRUE(communicator_.poisoned());
  communicator_.next = Status();
  for (const Status& status : {all_gather(4, 9, {2, 4, 3}), communicator_.complete(deadline_)}) {
    EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed);
    EXPECT_EQ(status.message(), "rank 2 is gone");
  }
  EXPECT_EQ(communicator_.calls, (std::vector<std::string>{"all_gather", "complete", "complete"}));
  EXPECT_EQ(communicator_.poisons.size(), 1U) << "the peers are told once";
}

TEST_F(CommunicatorFront, PoisonIsKept) {
  communicator_.poison(Status(ErrorCode::kPoolFull, "no memory on worker 1"));
  communicator_.poison(Status(ErrorCode::kInternal, "a consequence"));
  EXPECT_TRUE(communicator_.poisoned());
  ASSERT_EQ(communicator_.poisons.size(), 1U);
  EXPECT_EQ(communicator_.poisons[0].message(), "no memory on worker 1");
  EXPECT_EQ(communicator_.broadcast(recv_, 0, deadline_).code(), ErrorCode::kPoolFull);
  EXPECT_TRUE(communicator_.calls.empty());
}

TEST_F(CommunicatorFront, PoisonWithoutAReasonIsNone) {
  communicator_.poison(Status());
  EXPECT_FALSE(communicator_.poisoned());
  EXPECT_TRUE(communicator_.poisons.empty()) << "peers are told of a failure only";
  EXPECT_TRUE(communicator_.broadcast(recv_, 0, deadline_).ok());
}

class CommunicatorSurvivors : public CommunicatorFront {
 protected:
  /// The message with which `members` are refused; nothing has changed then.
  std::string refusal(const std::vector<int>& members) {
    const Status status = status_of([&] { (void)communicator_.survivors(members, 1); });
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_FALSE(communicator_.poisoned());
    return status.message();
  }
};

TEST_F(CommunicatorSurvivors, KeepTheirPlacesAndEndWhatTheyCameFrom) {
  EXPECT_EQ(communicator_.members().size(), 3U);
  const std::vector<int> members{1, 2};
  const auto survivors = communicator_.survivors(members, 1);
  EXPECT_EQ(survivors->rank(), kRank);
  EXPECT_EQ(survivors->size(), kSize);
  EXPECT_EQ(std::vector<int>(survivors->members().begin(), survivors->members().end()), members);
  EXPECT_FALSE(survivors->poisoned());
  ASSERT_EQ(communicator_.poisons.size(), 1U);
  EXPECT_EQ(communicator_.poisons[0].code(), ErrorCode::kCommunicatorPoisoned);
  EXPECT_EQ(communicator_.poisons[0].message(), "rank 1 goes on with ranks 1, 2 alone");
}

TEST_F(CommunicatorSurvivors, KeepTheFirstFailureOfWhatTheyCameFrom) {
  communicator_.poison(Status(ErrorCode::kPoolFull, "no memory on worker 1"));
  (void)communicator_.survivors(std::vector<int>{1}, 1);
  EXPECT_EQ(communicator_.poisons.size(), 1U) << "the peers are told once";
  EXPECT_EQ(communicator_.broadcast(recv_, 0, deadline_).code(), ErrorCode::kPoolFull);
}

TEST_F(CommunicatorSurvivors, ThatCannotBeMadeChangeNothing) {
  communicator_.next = Status(ErrorCode::kUnsupported, "not here");
  EXPECT_EQ(status_of([&] { (void)communicator_.survivors(std::vector<int>{1}, 1); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_FALSE(communicator_.poisoned());
}

TEST_F(CommunicatorSurvivors, AreOfAWellFormedList) {
  EXPECT_EQ(refusal({}), "survivors: rank 1 itself is not among []");
  EXPECT_EQ(refusal({0, 2}), "survivors: rank 1 itself is not among [0, 2]");
  EXPECT_EQ(refusal({1, 0}), "survivors: rank 0 follows rank 1, expected ascending");
  EXPECT_EQ(refusal({1, 1}), "survivors: rank 1 follows rank 1, expected ascending");
  EXPECT_EQ(refusal({1, 3}), "survivors: rank 3 is not one of the members 0, 1, 2");
  EXPECT_EQ(refusal({-1, 1}), "survivors: rank -1 is not one of the members 0, 1, 2");
}

TEST_F(CommunicatorSurvivors, CountBytesToMembersAlone) {
  const auto survivors = communicator_.survivors(std::vector<int>{0, 1}, 1);
  const Counts counts{2, 4, 0};
  EXPECT_TRUE(
      survivors->all_gather(std::span(send_).first(4), std::span(recv_).first(6), counts, deadline_)
          .ok());
  EXPECT_TRUE(survivors->broadcast(std::span(recv_).first(10), kRank, deadline_).ok());
  EXPECT_EQ(survivors->traffic()[CollectiveKind::kAllGather], 4U);
  EXPECT_EQ(survivors->traffic()[CollectiveKind::kBroadcast], 10U);
}

TEST_F(CommunicatorSurvivors, RefuseAPartOfAnAbsentRank) {
  const auto message_of = [&](const auto& call) {
    RecordingCommunicator survivors(kRank, kSize, std::vector<int>{0, 1});
    const Status status = call(survivors);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_TRUE(survivors.calls.empty());
    return status.message();
  };
  const std::span<std::byte> recv(recv_);
  const std::span<std::byte> send(send_);
  const Counts none{0, 0, 0};
  const Counts wrong{0, 0, 5};
  EXPECT_EQ(message_of([&](Communicator& c) { return c.broadcast(recv, 2, deadline_); }),
            "broadcast: root is 2, but only ranks 0, 1 take part");
  EXPECT_EQ(message_of(
                [&](Communicator& c) { return c.all_gather({}, recv.first(5), wrong, deadline_); }),
            "all_gather: count of rank 2 is 5, expected 0: only ranks 0, 1 take part");
  EXPECT_EQ(message_of([&](Communicator& c) {
              return c.all_to_all(send.first(5), wrong, {}, none, deadline_);
            }),
            "all_to_all: send count of rank 2 is 5, expected 0: only ranks 0, 1 take part");
  EXPECT_EQ(message_of([&](Communicator& c) {
              return c.all_to_all({}, none, recv.first(5), wrong, deadline_);
            }),
            "all_to_all: receive count of rank 2 is 5, expected 0: only ranks 0, 1 take part");
}

}  // namespace
}  // namespace tributary
