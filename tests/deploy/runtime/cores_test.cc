// How many threads a worker gets of the cores that it may use and of its container's CPU quota.
#include "deploy/runtime/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "deploy/runtime/cpu_quota.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

/// Control groups as files, with the same lines as those of the kernel.
class Groups : public testing::Test {
 protected:
  Groups() { fs::create_directories(root_ / "a" / "b"); }
  ~Groups() override { fs::remove_all(folder_); }

  void limit(const std::string& group, const std::string& line) {
    std::ofstream(root_ / group / "cpu.max") << line << '\n';
  }
  [[nodiscard]] CpuQuota of(const std::string& lines) {
    std::ofstream(folder_ / "own") << lines;
    return cpu_quota(root_, folder_ / "own");
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("tributary_groups." + std::to_string(getpid()));
  const fs::path root_ = folder_ / "cgroup";
};

TEST_F(Groups, TheNarrowestLimitOnTheWayToTheRootHolds) {
  EXPECT_EQ(of("0::/a/b\n").cpus, 0);
  limit("a/b", "max 100000");
  limit("a", "150000 100000");
  EXPECT_EQ(of("12:memory:/x\n0::/a/b\n").cpus, 1.5);
  limit("a/b", "50000 100000");
  EXPECT_EQ(of("0::/a/b\n").cpus, 0.5);
  limit("a/b", "800000 100000");
  EXPECT_EQ(of("0::/a/b\n").cpus, 1.5);
  EXPECT_EQ(of("0::/a/b\n").group, of("0::/a\n").group);
}

TEST_F(Groups, AContainersGroupIsTheRootOfItsMount) {
  limit("", "50000 100000");
  for (const char* own : {"0::/\n", "0::/docker/4f2a\n", "0::/../../x\n", "1:cpu:/y\n", ""}) {
    EXPECT_EQ(of(own).cpus, 0.5) << own;
  }
}

TEST_F(Groups, OtherTextIsNoLimit) {
  for (const char* line : {"", "max", "-1 100000", "100000", "100000 0", "many 100000"}) {
    limit("a/b", line);
    EXPECT_EQ(of("0::/a/b\n").cpus, 0) << line;
  }
}

Cores cores(std::size_t first, std::size_t count, CpuQuota quota = {}) {
  Cores result;
  for (std::size_t core = first; core < first + count; ++core) CPU_SET(core, &result.usable);
  result.quota = quota;
  return result;
}

TEST(ShareOfCores, IsAtMostTheQuotaRoundedUpAndAtLeastOne) {
  for (const auto& [cpus, threads] :
       {std::pair(0.0, 64), std::pair(0.1, 1), std::pair(0.5, 1), std::pair(1.0, 1),
        std::pair(1.5, 2), std::pair(8.0, 8), std::pair(100.0, 64)}) {
    EXPECT_EQ(share_of_cores(std::vector{cores(0, 64, {cpus, 1})}, 0), threads) << cpus;
  }
}

TEST(ShareOfCores, WorkersOfAGroupShareItsQuota) {
  const std::vector workers = {cores(0, 64, {8, 1}), cores(0, 64, {8, 1}), cores(0, 64, {8, 1}),
                               cores(0, 64, {9, 2}), cores(0, 64)};
  EXPECT_EQ(share_of_cores(workers, 0), 3);
  EXPECT_EQ(share_of_cores(workers, 3), 9);
  EXPECT_EQ(share_of_cores(workers, 4), 12);  // a fifth of the cores
  // On another machine a group of the same number is another one.
  std::vector two = {cores(0, 64, {8, 1}), cores(0, 64, {8, 1})};
  two[1].machine[0] = 'b';
  EXPECT_EQ(share_of_cores(two, 0), 8);
}

}  // namespace
}  // namespace tributary
