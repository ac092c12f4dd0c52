// A rank is killed with SIGKILL in the middle of a series; the survivors end it, typed, and go on
// without it; then another one is killed. Over each of MPI's transports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <string>

namespace tributary {
namespace {

/// The output of all ranks and mpirun. With --enable-recovery mpirun lets the survivors live, and
/// exits with their status. It has its own time limit, so that it cannot outlive this program.
std::string run_under_mpirun(int ranks, int losses, const std::string& transport) {
  const std::string command =
      std::string("timeout --kill-after=5 90 ") + TRIBUTARY_MPIRUN + " -np " +
      std::to_string(ranks) + " --oversubscribe --bind-to none --enable-recovery " + transport +
      " " + TRIBUTARY_RANK_KILLED_PROGRAM + " " + std::to_string(losses) + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a command of ours
  if (pipe == nullptr) return "popen failed";
  std::string output;
  std::array<char, 4096> part{};
  while (fgets(part.data(), part.size(), pipe) != nullptr) output += part.data();
  pclose(pipe);
  return output;
}

/// The time limit of mpirun bounds how long the survivors may take.
void expect_survivors(int ranks, int losses, const std::string& transport) {
  const std::string output = run_under_mpirun(ranks, losses, transport);
  if (output.find("PML ucx cannot be selected") != std::string::npos) {
    GTEST_SKIP() << "this MPI library has no UCX";
  }
  SCOPED_TRACE(output);
  // Now and then MPI itself says that a connection is lost.
  const std::string typed = "(deadline_exceeded|worker_failed)";
  std::string ends = typed;
  for (int loss = 1; loss < losses; ++loss) ends += ", " + typed;
  const int left = ranks - losses;
  for (int rank = 0; rank < left; ++rank) {
    EXPECT_THAT(output,
                testing::ContainsRegex("rank " + std::to_string(rank) + ": " + ends +
                                       "; 300 calls of " + std::to_string(left) + " ranks in "));
  }
}

TEST(RankKilled, TheLastOneGoesOnAlone) {
  expect_survivors(2, 1, "");
}

TEST(RankKilled, SurvivorsGoOnTwiceOverSharedMemory) {
  expect_survivors(4, 2, "");
}

// Without the progress thread a survivor sometimes never returns from MPI (mpi_communicator.h).
TEST(RankKilled, SurvivorsGoOnTwiceOverTcp) {
  expect_survivors(4, 2,
                   "--mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "
                   "--mca btl_tcp_progress_thread 1");
}

// By itself Open MPI takes UCX only for network devices that it knows. Of UCX's transports cma ends
// a survivor that reads memory of a dead rank.
TEST(RankKilled, SurvivorsGoOnTwiceOverUcx) {
  expect_survivors(4, 2,
                   "--mca pml ucx --mca opal_common_ucx_tls any --mca opal_common_ucx_devices any "
                   "-x UCX_TLS=^cma");
}

}  // namespace
}  // namespace tributary
