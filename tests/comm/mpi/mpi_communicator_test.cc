// Ranks as processes join the conformance suite; and what only MPI has. Runs on every rank.
#include "comm/mpi/mpi_communicator.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/mpi/launcher.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/communicator_conformance.h"
#include "tests/mpi_test_main.h"

namespace tributary::testing_support {
namespace {

void run(const std::function<void(Communicator&)>& body) {
  // Also where the ranks wait for each other between tests.
  const auto communicator = make_mpi_communicator(mpi_environment(), ample_deadline());
  EXPECT_EQ(communicator->name(), "mpi");
  body(*communicator);
}

TEST(MpiCommunicator, ARankThatSkipsACallIsNotPairedWithTheNext) {
  run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    const std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), 8);
    const bool skips = communicator.rank() == 0;
    if (!skips) check_broadcast(communicator, 1, communicator.size() - 1, 8);
    const std::vector<std::byte> send(8);
    std::vector<std::byte> recv(8 * counts.size());
    const Status status =
        communicator.all_gather(send, recv, counts, Deadline::after(std::chrono::milliseconds(50)));
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
  });
}

TEST(MpiCommunicator, CommunicatorsDoNotDisturbEachOther) {
  const auto broken_owner = make_mpi_communicator(mpi_environment(), ample_deadline());
  const auto sound_owner = make_mpi_communicator(mpi_environment(), ample_deadline());
  Communicator& broken = *broken_owner;
  Communicator& sound = *sound_owner;
  // The request of the missed call stays pending, and lands in memory that nobody uses.
  if (broken.rank() != 0) {
    std::array<std::byte, 8> data{};
    const Status status = broken.broadcast(data, 0, Deadline::after(std::chrono::milliseconds(20)));
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
  }
  for (std::uint64_t call = 0; call < 20; ++call) {
    check_all_gather(sound, call,
                     std::vector<std::size_t>(static_cast<std::size_t>(sound.size()), 1000));
  }
  // The root enters late: its peers, if there are any, tell it why they failed.
  std::array<std::byte, 8> data{};
  EXPECT_EQ(broken.broadcast(data, 0, ample_deadline()).code(),
            broken.size() == 1 ? ErrorCode::kOk : ErrorCode::kDeadlineExceeded);
}

TEST(MpiCommunicator, SurvivorsAreMadeEightTimes) {
  std::unique_ptr<Communicator> current =
      make_mpi_communicator(mpi_environment(), ample_deadline());
  for (int loss = 0; loss < 8; ++loss) current = current->survivors(current->members(), 2);
  const Status status = status_of([&] { (void)current->survivors(current->members(), 2); });
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(status.message(),
            "mpi: all 9 communicators that were made at the start are used; after 8 losses a pool "
            "has to be started anew");
  // The last one is as good as before.
  check_broadcast(*current, 1, 0, 1000);
}

TEST(MpiEnvironment, IsTheOnlyOne) {
  try {
    const MpiEnvironment second(nullptr, nullptr);
    ADD_FAILURE() << "a second environment was made";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  }
}

TEST(Launcher, IsSeen) {
  EXPECT_TRUE(launched_by_mpirun());
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance,
                         testing::Values(RankLauncher{"Mpi", mpi_environment().size(), run}),
                         conformance_name);

}  // namespace tributary::testing_support
