// A rank is killed with SIGKILL in the middle of a series; the survivors fail, typed, and end.
#include <gtest/gtest.h>
#include <stdio.h>

#include <array>
#include <string>

namespace tributary {
namespace {

/// The output of all ranks and mpirun. With --enable-recovery mpirun lets the survivors live, and
/// exits with their status. It has its own time limit, so that it cannot outlive this program.
std::string run_under_mpirun(int ranks) {
  const std::string command = std::string("timeout --kill-after=5 50 ") + TRIBUTARY_MPIRUN +
                              " -np " + std::to_string(ranks) +
                              " --oversubscribe --bind-to none --enable-recovery " +
                              TRIBUTARY_RANK_KILLED_PROGRAM + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a command of ours
  if (pipe == nullptr) return "popen failed";
  std::string output;
  std::array<char, 4096> part{};
  while (fgets(part.data(), part.size(), pipe) != nullptr) output += part.data();
  pclose(pipe);
  return output;
}

// The time limit of mpirun bounds how long the survivors may take.
TEST(RankKilled, SurvivorsEndWithATypedError) {
  for (const int ranks : {2, 4}) {
    const std::string output = run_under_mpirun(ranks);
    SCOPED_TRACE(output);
    for (int rank = 0; rank + 1 < ranks; ++rank) {
      const std::string line = "rank " + std::to_string(rank) + ": deadline_exceeded\n";
      EXPECT_NE(output.find(line), std::string::npos) << "expected: " << line;
    }
  }
}

}  // namespace
}  // namespace tributary
