// Ranks as threads join the conformance suite.
#include "comm/local/run_ranks.h"
#include "tests/comm/communicator_conformance.h"

namespace tributary::testing_support {
namespace {

RankLauncher threads(int ranks) {
  return {"Threads" + std::to_string(ranks), ranks,
          [ranks](const auto& body) { run_ranks(ranks, body); }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
                         testing::Values(threads(1), threads(2), threads(3), threads(4),
                                         threads(8)),
                         conformance_name);

}  // namespace tributary::testing_support
