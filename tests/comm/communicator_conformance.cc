// The cases of the conformance suite. Everything here runs on every rank.
#include "tests/comm/communicator_conformance.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/collective_check.h"

namespace tributary::testing_support {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Around the cache line, the eager limits of transports, and the piece of the threads.
constexpr std::array<std::size_t, 14> kSizes = {
    0, 1, 7, 8, 63, 64, 65, 4096, 4097, 100003, 131072, 131073, 1000001, 4 * kMiB};

using Matrix = std::vector<std::vector<std::size_t>>;

std::vector<std::size_t> equal_counts(int ranks, std::size_t bytes) {
  return std::vector<std::size_t>(static_cast<std::size_t>(ranks), bytes);
}

Matrix ragged_matrix(std::mt19937_64& random, int ranks, std::size_t max_bytes) {
  Matrix matrix;
  for (int rank = 0; rank < ranks; ++rank) {
    matrix.push_back(ragged_counts(random, ranks, max_bytes));
  }
  return matrix;
}

/// A one-byte all-gather, for calls that must fail.
Status small_call(Communicator& communicator, Deadline deadline = ample_deadline()) {
  const std::array<std::byte, 1> send{};
  std::vector<std::byte> recv(static_cast<std::size_t>(communicator.size()));
  return communicator.all_gather(send, recv, equal_counts(communicator.size(), 1), deadline);
}

/// Every kind of call fails with `code` and `text` in its message, and counts no traffic.
void expect_dead(Communicator& communicator, ErrorCode code, const std::string& text) {
  const Traffic before = communicator.traffic();
  EXPECT_TRUE(communicator.poisoned());
  std::array<std::byte, 1> byte{};
  const std::vector<std::size_t> counts = equal_counts(communicator.size(), 1);
  std::vector<std::byte> send(counts.size());
  std::vector<std::byte> recv(counts.size());
  for (const Status& status :
       {communicator.broadcast(byte, 0, ample_deadline()), small_call(communicator),
        communicator.all_to_all(send, counts, recv, counts, ample_deadline())}) {
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  }
  EXPECT_TRUE(communicator.traffic() == before);
}

}  // namespace

TEST_P(CommunicatorConformance, KnowsItself) {
  run([](Communicator& communicator) {
    EXPECT_EQ(communicator.size(), ranks());
    EXPECT_GE(communicator.rank(), 0);
    EXPECT_LT(communicator.rank(), communicator.size());
    EXPECT_FALSE(communicator.name().empty());
    EXPECT_FALSE(communicator.poisoned());
  });
}

TEST_P(CommunicatorConformance, BroadcastFromEveryRoot) {
  run([](Communicator& communicator) {
    for (int root = 0; root < communicator.size(); ++root) {
      for (const std::size_t bytes : kSizes) {
        if (bytes < kMiB || root == 0) check_broadcast(communicator, bytes, root, bytes);
      }
    }
  });
}

TEST_P(CommunicatorConformance, AllGatherOfEqualBlocks) {
  run([](Communicator& communicator) {
    for (const std::size_t bytes : kSizes) {
      if (communicator.size() > 4 && bytes > kMiB) continue;  // slow under the thread sanitizer
      check_all_gather(communicator, bytes, equal_counts(communicator.size(), bytes));
    }
  });
}

TEST_P(CommunicatorConformance, AllGatherOfRaggedBlocks) {
  run([](Communicator& communicator) {
    std::mt19937_64 random(1);
    for (std::uint64_t call = 0; call < 50; ++call) {
      check_all_gather(communicator, call, ragged_counts(random, communicator.size(), 20000));
    }
    for (int only = 0; only < communicator.size(); ++only) {
      std::vector<std::size_t> counts = equal_counts(communicator.size(), 0);
      counts[static_cast<std::size_t>(only)] = 300001;
      check_all_gather(communicator, 100, counts);
    }
  });
}

TEST_P(CommunicatorConformance, AllToAllOfEqualBlocks) {
  run([](Communicator& communicator) {
    for (const std::size_t bytes : kSizes) {
      // The largest: 4 MiB in all from each rank.
      const std::size_t block = bytes / static_cast<std::size_t>(communicator.size());
      check_all_to_all(communicator, bytes,
                       Matrix(static_cast<std::size_t>(communicator.size()),
                              equal_counts(communicator.size(), block)));
    }
  });
}

TEST_P(CommunicatorConformance, AllToAllOfRaggedBlocks) {
  run([](Communicator& communicator) {
    std::mt19937_64 random(2);
    for (std::uint64_t call = 0; call < 50; ++call) {
      check_all_to_all(communicator, call, ragged_matrix(random, communicator.size(), 20000));
    }
    // Everything to one rank, as roots to their home.
    for (std::size_t home = 0; home < static_cast<std::size_t>(communicator.size()); ++home) {
      Matrix counts(static_cast<std::size_t>(communicator.size()),
                    equal_counts(communicator.size(), 0));
      for (auto& row : counts) row[home] = 150001;
      check_all_to_all(communicator, 100 + home, counts);
    }
  });
}

TEST_P(CommunicatorConformance, ManyMixedCallsInARow) {
  run([](Communicator& communicator) {
    std::mt19937_64 random(3);
    const int size = communicator.size();
    for (std::uint64_t call = 0; call < 300; ++call) {
      switch (random() % 3) {
        case 0:
          check_broadcast(communicator, call,
                          static_cast<int>(random() % static_cast<std::uint64_t>(size)),
                          random() % 1000);
          break;
        case 1:
          check_all_gather(communicator, call, ragged_counts(random, size, 500));
          break;
        default:
          check_all_to_all(communicator, call, ragged_matrix(random, size, 500));
          break;
      }
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

TEST_P(CommunicatorConformance, PoisonReachesPeers) {
  run([](Communicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.poison({ErrorCode::kWorkerFailed, "page 812 is gone"});
    } else {
      EXPECT_EQ(small_call(communicator).code(), ErrorCode::kWorkerFailed);
    }
    expect_dead(communicator, ErrorCode::kWorkerFailed, "page 812 is gone");
  });
}

TEST_P(CommunicatorConformance, PoisonIsHeardWithoutACall) {
  run([](Communicator& communicator) {
    if (communicator.rank() == 0) {
      EXPECT_TRUE(communicator.look_for_failure().ok());
      communicator.poison({ErrorCode::kWorkerFailed, "page 812 is gone"});
    }
    const Deadline deadline = ample_deadline();
    while (communicator.look_for_failure().ok() && !deadline.expired()) std::this_thread::yield();
    expect_dead(communicator, ErrorCode::kWorkerFailed, "page 812 is gone");
  });
}

TEST_P(CommunicatorConformance, WrongArgumentsOfOneRankEndAll) {
  run([](Communicator& communicator) {
    if (communicator.rank() == communicator.size() - 1) {
      EXPECT_FALSE(communicator.broadcast({}, 99, ample_deadline()).ok());
    } else {
      EXPECT_FALSE(small_call(communicator).ok());
    }
    expect_dead(communicator, ErrorCode::kInvalidArgument, "root is 99");
  });
}

// The rank whose block is too long or too short may find its own call complete, and fails in the
// next.
TEST_P(CommunicatorConformance, SizesThatDoNotMatchEndAll) {
  if (ranks() == 1 || !GetParam().finds_mismatches) return;
  for (const std::size_t odd : {std::size_t{7}, std::size_t{9}, std::size_t{300000}}) {
    for (int kind = 0; kind < 3; ++kind) {
      SCOPED_TRACE(testing::Message() << odd << " bytes, kind " << kind);
      run([&](Communicator& communicator) {
        const auto size = static_cast<std::size_t>(communicator.size());
        const bool is_odd = communicator.rank() == 0;
        std::vector<std::size_t> counts(size, 8);
        if (is_odd) counts.assign(size, odd);
        std::vector<std::size_t> own_counts = equal_counts(communicator.size(), 8);
        if (is_odd) own_counts[0] = odd;
        std::vector<std::byte> one(is_odd ? odd : 8);
        std::vector<std::byte> many(size * one.size());
        std::vector<std::byte> recv(is_odd && kind == 1 ? odd + 8 * (size - 1) : 8 * size);
        Status status;
        switch (kind) {
          case 0:
            status = communicator.broadcast(one, 0, ample_deadline());
            break;
          case 1:
            status = communicator.all_gather(one, recv, own_counts, ample_deadline());
            break;
          default:
            // The block to itself matches.
            if (is_odd) {
              recv.resize(odd + 8 * (size - 1));
              status = communicator.all_to_all(many, counts, recv, own_counts, ample_deadline());
            } else {
              status = communicator.all_to_all(many, counts, recv, counts, ample_deadline());
            }
            break;
        }
        if (status.ok()) status = small_call(communicator);
        EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
      });
    }
  }
}

// Ranks that stood still together until after their deadline.
TEST_P(CommunicatorConformance, RanksThatAreLateStillHearEachOther) {
  run([](Communicator& communicator) {
    const Deadline late(Time(), ample_deadline().when() - std::chrono::steady_clock::now());
    const std::size_t bytes = 100000;
    const std::vector<std::size_t> counts = equal_counts(communicator.size(), bytes);
    std::vector<std::byte> one(bytes);
    std::vector<std::byte> send(bytes * counts.size());
    std::vector<std::byte> recv(bytes * counts.size());
    for (const Status& status :
         {communicator.broadcast(one, 0, late), communicator.all_gather(one, recv, counts, late),
          communicator.all_to_all(send, counts, recv, counts, late), communicator.complete(late)}) {
      EXPECT_TRUE(status.ok()) << status.message();
    }
  });
}

// The ranks must end by themselves: the test's own time limit is far beyond the deadline.
TEST_P(CommunicatorConformance, MissingRankEndsTheOthersAtTheirDeadline) {
  if (ranks() == 1) return;  // it waits for nobody
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{100000}, kMiB}) {
    for (int kind = 0; kind < 3; ++kind) {
      run([&](Communicator& communicator) {
        if (communicator.rank() == communicator.size() - 1) return;
        const std::chrono::milliseconds wait(30);
        const Deadline deadline = bytes == kMiB ? Deadline(Time(), wait) : Deadline::after(wait);
        const std::vector<std::size_t> counts = equal_counts(communicator.size(), bytes);
        Status status;
        {
          // Freed before the peers are done with the failed call: the address sanitizer watches.
          std::vector<std::byte> one(bytes);
          std::vector<std::byte> send(bytes * counts.size());
          std::vector<std::byte> recv(bytes * counts.size());
          switch (kind) {
            // The missing rank is the root: nobody can have the data.
            case 0:
              status = communicator.broadcast(one, communicator.size() - 1, deadline);
              break;
            case 1:
              status = communicator.all_gather(one, recv, counts, deadline);
              break;
            default:
              status = communicator.all_to_all(send, counts, recv, counts, deadline);
              break;
          }
        }
        EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
        expect_dead(communicator, ErrorCode::kDeadlineExceeded, "");
      });
    }
  }
}

}  // namespace tributary::testing_support
