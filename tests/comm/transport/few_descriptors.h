// A process that runs out of descriptors.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace tributary::testing_support {

/// While this exists, the process can open at most `more` further descriptors. RLIMIT_NOFILE bounds
/// the numbers of descriptors, not their count, and the process may have been started with gaps and
/// high ones. A new descriptor gets the lowest free number, so the bound is the number of the first
/// one that is one too many. It is that or higher where another thread has one open for a moment,
/// as a transport's does before it accepts.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t more) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<int> free(more + 1);
    for (int& fd : free) fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(std::count(free.begin(), free.end(), -1), 0);
    for (const int fd : free) close(fd);
    // Not the last one: its number may have become free meanwhile.
    const int too_many = *std::max_element(free.begin(), free.end());
    const rlimit now{.rlim_cur = static_cast<rlim_t>(too_many), .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace tributary::testing_support
