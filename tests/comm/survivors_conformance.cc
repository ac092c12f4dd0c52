// The cases of the conformance suite for those that go on when a rank is lost. Everything here runs
// on every rank.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/comm/collective_check.h"
#include "tests/comm/communicator_conformance.h"

namespace tributary::testing_support {
namespace {

using Counts = std::vector<std::size_t>;

std::size_t index(int rank) {
  return static_cast<std::size_t>(rank);
}

std::vector<int> members_of(const Communicator& communicator) {
  return {communicator.members().begin(), communicator.members().end()};
}

/// Random counts of the members; 0 for the others.
Counts member_counts(std::mt19937_64& random, const Communicator& communicator,
                     std::size_t max_bytes) {
  const Counts all = ragged_counts(random, communicator.size(), max_bytes);
  Counts counts(all.size(), 0);
  for (const int member : communicator.members()) counts[index(member)] = all[index(member)];
  return counts;
}

/// `bytes` for every member; 0 for the others.
Counts even_counts(const Communicator& communicator, std::size_t bytes) {
  Counts counts(index(communicator.size()), 0);
  for (const int member : communicator.members()) counts[index(member)] = bytes;
  return counts;
}

/// An all-gather of `bytes` of each member, for calls that must fail.
Status gather(Communicator& communicator, std::size_t bytes, Deadline deadline = ample_deadline()) {
  const Counts counts = even_counts(communicator, bytes);
  const std::vector<std::byte> send(bytes);
  std::vector<std::byte> recv(bytes * communicator.members().size());
  return communicator.all_gather(send, recv, counts, deadline);
}

/// Calls of all kinds, checked in full, and what they count.
void check_calls(Communicator& communicator, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "among " << testing::PrintToString(members_of(communicator)));
  std::mt19937_64 random(seed);
  const std::vector<int> members = members_of(communicator);
  const std::size_t others = members.size() - 1;
  const std::size_t self = index(communicator.rank());
  Traffic expected = communicator.traffic();
  for (std::uint64_t call = 0; call < 60; ++call) {
    // Some of several pieces.
    const std::size_t max_bytes = call % 20 == 0 ? 400'000 : 2000;
    switch (random() % 3) {
      case 0: {
        const int root = members[random() % members.size()];
        const std::size_t bytes = random() % max_bytes;
        check_broadcast(communicator, call, root, bytes);
        if (root == communicator.rank()) expected[CollectiveKind::kBroadcast] += bytes * others;
        break;
      }
      case 1: {
        const Counts counts = member_counts(random, communicator, max_bytes);
        check_all_gather(communicator, call, counts);
        expected[CollectiveKind::kAllGather] += counts[self] * others;
        break;
      }
      default: {
        std::vector<Counts> counts(index(communicator.size()),
                                   Counts(index(communicator.size()), 0));
        for (const int from : members) {
          counts[index(from)] = member_counts(random, communicator, max_bytes);
        }
        check_all_to_all(communicator, call, counts);
        expected[CollectiveKind::kAllToAll] +=
            std::accumulate(counts[self].begin(), counts[self].end(), std::size_t{0}) -
            counts[self][self];
        break;
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_TRUE(communicator.traffic() == expected);
}

/// How a rank leaves.
enum class Loss : std::uint8_t { kPoison, kError, kSilence };

/// Rank `lost` leaves while the others are in a collective; it ends on all.
void lose(Communicator& communicator, int lost, Loss loss, std::size_t bytes) {
  if (communicator.rank() != lost) {
    const Deadline soon = Deadline::after(std::chrono::milliseconds(30));
    EXPECT_FALSE(
        gather(communicator, bytes, loss == Loss::kSilence ? soon : ample_deadline()).ok());
  } else if (loss == Loss::kPoison) {
    communicator.poison({ErrorCode::kWorkerFailed, "page 812 is gone"});
  } else if (loss == Loss::kError) {
    EXPECT_FALSE(communicator.broadcast({}, 99, ample_deadline()).ok());
  }
}

/// `members` without `lost`.
std::vector<int> without(std::vector<int> members, int lost) {
  std::erase(members, lost);
  return members;
}

/// The survivors of `whole` without its last rank, which fails; null on that rank.
std::unique_ptr<Communicator> without_last(Communicator& whole) {
  const int lost = whole.size() - 1;
  lose(whole, lost, Loss::kPoison, 8);
  return whole.rank() == lost ? nullptr : whole.survivors(without(members_of(whole), lost), 1);
}

/// `members` are refused with `text` in the message, and nothing has changed.
void expect_refused(Communicator& communicator, const std::vector<int>& members,
                    const std::string& text) {
  const bool poisoned = communicator.poisoned();
  const Status status = status_of([&] { (void)communicator.survivors(members, 1); });
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find(text), std::string::npos)
      << status.message() << "; expected: " << text;
  EXPECT_EQ(communicator.poisoned(), poisoned);
}

}  // namespace

TEST_P(CommunicatorConformance, SurvivorsGoOnAfterEachLoss) {
  if (!GetParam().has_survivors) return;
  for (const Loss loss : {Loss::kPoison, Loss::kError, Loss::kSilence}) {
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{300000}}) {
      SCOPED_TRACE(testing::Message() << "loss " << static_cast<int>(loss) << ", " << bytes);
      run([&](Communicator& whole) {
        EXPECT_EQ(members_of(whole).size(), index(whole.size()));
        std::vector<std::unique_ptr<Communicator>> survivors;
        Communicator* current = &whole;
        // Of 4: the third, then the first.
        for (const bool first_loss : {true, false}) {
          const std::vector<int> present = members_of(*current);
          if (present.size() == 1) return;
          const int lost = first_loss ? present[present.size() / 2] : present[0];
          lose(*current, lost, loss, bytes);
          if (current->rank() == lost) return;
          const std::vector<int> left = without(present, lost);
          survivors.push_back(current->survivors(left, survivors.size() + 1));
          EXPECT_TRUE(current->poisoned());
          current = survivors.back().get();
          EXPECT_EQ(current->rank(), whole.rank());
          EXPECT_EQ(current->size(), whole.size());
          EXPECT_EQ(current->name(), whole.name());
          EXPECT_EQ(members_of(*current), left);
          EXPECT_TRUE(current->traffic() == Traffic());
          check_calls(*current, 11);
        }
      });
    }
  }
}

TEST_P(CommunicatorConformance, SurvivorsOutliveWhatTheyCameFrom) {
  if (!GetParam().has_survivors) return;
  run([](Communicator& whole) {
    std::unique_ptr<Communicator> current = whole.survivors(whole.members(), 1);
    current = current->survivors(current->members(), 2);
    check_calls(*current, 12);
  });
}

TEST_P(CommunicatorConformance, SurvivorsMayBeAskedForAgain) {
  if (!GetParam().has_survivors) return;
  run([](Communicator& whole) {
    // The same list twice, out of the same: the second is another communicator.
    const std::unique_ptr<Communicator> first = whole.survivors(whole.members(), 1);
    const std::unique_ptr<Communicator> second = whole.survivors(whole.members(), 2);
    check_calls(*second, 13);
    first->poison({ErrorCode::kWorkerFailed, "page 812 is gone"});
    check_calls(*second, 14);
  });
}

TEST_P(CommunicatorConformance, SurvivorsAreWithoutThoseThatAreNotAsked) {
  if (!GetParam().has_survivors || ranks() == 1) return;
  run([](Communicator& whole) {
    const int lost = whole.size() - 1;
    if (whole.rank() != lost) {
      const auto survivors = whole.survivors(without(members_of(whole), lost), 1);
      EXPECT_EQ(gather(whole, 8).code(), ErrorCode::kCommunicatorPoisoned);
      check_calls(*survivors, 15);
      return;
    }
    // It lives, and learns why it is alone.
    const Status status = gather(whole, 8);
    EXPECT_EQ(status.code(), ErrorCode::kCommunicatorPoisoned) << status.message();
    EXPECT_NE(status.message().find("goes on with ranks 0"), std::string::npos) << status.message();
  });
}

TEST_P(CommunicatorConformance, SurvivorsEndTogetherToo) {
  if (!GetParam().has_survivors || ranks() < 3) return;
  run([](Communicator& whole) {
    const auto survivors = without_last(whole);
    if (survivors == nullptr) return;
    if (survivors->rank() == 0) survivors->poison({ErrorCode::kPoolFull, "no page is left"});
    EXPECT_EQ(gather(*survivors, 8).code(), ErrorCode::kPoolFull);
    EXPECT_TRUE(survivors->poisoned());
  });
}

TEST_P(CommunicatorConformance, AnAbsentRankHasNoPartInACall) {
  if (!GetParam().has_survivors || ranks() == 1) return;
  const int absent = ranks() - 1;
  const std::string name = "of rank " + std::to_string(absent) + " is 7, expected 0";
  const std::vector<std::pair<std::function<Status(Communicator&)>, std::string>> calls = {
      {[&](Communicator& c) { return c.broadcast({}, absent, ample_deadline()); },
       "root is " + std::to_string(absent) + ", but only ranks 0"},
      {[&](Communicator& c) {
         Counts counts = even_counts(c, 4);
         counts[index(absent)] = 7;
         const std::vector<std::byte> send(4);
         std::vector<std::byte> recv(4 * c.members().size() + 7);
         return c.all_gather(send, recv, counts, ample_deadline());
       },
       "all_gather: count " + name},
      {[&](Communicator& c) {
         const Counts none(index(c.size()), 0);
         Counts counts = none;
         counts[index(absent)] = 7;
         const std::vector<std::byte> send(7);
         return c.all_to_all(send, counts, {}, none, ample_deadline());
       },
       "all_to_all: send count " + name},
      {[&](Communicator& c) {
         const Counts none(index(c.size()), 0);
         Counts counts = none;
         counts[index(absent)] = 7;
         std::vector<std::byte> recv(7);
         return c.all_to_all({}, none, recv, counts, ample_deadline());
       },
       "all_to_all: receive count " + name},
  };
  for (const auto& [call, text] : calls) {
    run([&, &call = call, &text = text](Communicator& whole) {
      const auto survivors = without_last(whole);
      if (survivors == nullptr) return;
      const Status status = call(*survivors);
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(status.message().find(text), std::string::npos)
          << status.message() << "; expected: " << text;
      EXPECT_TRUE(survivors->traffic() == Traffic());
    });
  }
}

TEST_P(CommunicatorConformance, SurvivorsAreOfAWellFormedList) {
  if (!GetParam().has_survivors) return;
  run([](Communicator& whole) {
    const int rank = whole.rank();
    const int size = whole.size();
    expect_refused(whole, {}, "rank " + std::to_string(rank) + " itself is not among []");
    expect_refused(whole, {rank, size}, "rank " + std::to_string(size) + " is not one of");
    expect_refused(whole, {-1, rank}, "rank -1 is not one of");
    expect_refused(whole, {rank, rank}, "follows rank " + std::to_string(rank));
    if (size > 1) {
      expect_refused(whole, {size - 1, 0}, "rank 0 follows rank " + std::to_string(size - 1));
      const int other = rank == 0 ? 1 : 0;
      expect_refused(
          whole, {other},
          "rank " + std::to_string(rank) + " itself is not among [" + std::to_string(other) + "]");
    }
    check_calls(whole, 16);
    if (size == 1) return;
    const auto survivors = without_last(whole);
    if (survivors == nullptr) return;
    if (!survivors->takes_newcomers()) {
      expect_refused(*survivors, members_of(whole), "rank " + std::to_string(size - 1) + " is not");
    }
    check_calls(*survivors, 17);
  });
}

TEST_P(CommunicatorConformance, WhoHasNoSurvivorsSaysSo) {
  if (GetParam().has_survivors) return;
  run([](Communicator& whole) {
    const Status status = status_of([&] { (void)whole.survivors(whole.members(), 1); });
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_TRUE(status.message().starts_with(whole.name())) << status.message();
    EXPECT_FALSE(whole.poisoned());
  });
}

}  // namespace tributary::testing_support
