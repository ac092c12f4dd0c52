// The suite that every communicator passes. An implementation joins with a file that says how to
// run a function on every rank, and for which numbers of ranks:
//
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance, testing::Values(launcher...),
//                            conformance_name);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/interface/communicator.h"

namespace tributary::testing_support {

/// Runs `body` on every rank of a fresh communicator, and returns when `body` has returned on all
/// ranks of this process: all ranks if they are threads, otherwise the process' own rank.
struct RankLauncher {
  std::string name;  // letters and digits; becomes part of the test's name
  int ranks = 0;
  std::function<void(const std::function<void(Communicator&)>& body)> run;
  /// Whether it detects that two ranks disagree on the size of a block.
  bool finds_mismatches = true;
  bool has_survivors = true;
};

class CommunicatorConformance : public testing::TestWithParam<RankLauncher> {
 protected:
  [[nodiscard]] static int ranks() { return GetParam().ranks; }
  static void run(const std::function<void(Communicator&)>& body) { GetParam().run(body); }
};

[[nodiscard]] inline std::string conformance_name(
    const testing::TestParamInfo<RankLauncher>& info) {
  return info.param.name;
}

}  // namespace tributary::testing_support
