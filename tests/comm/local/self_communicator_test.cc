// The communicator of one rank joins the conformance suite.
#include "comm/local/self_communicator.h"

#include "tests/comm/communicator_conformance.h"

namespace tributary::testing_support {

INSTANTIATE_TEST_SUITE_P(Self, CommunicatorConformance,
                         testing::Values(RankLauncher{"Self", 1,
                                                      [](const auto& body) {
                                                        const auto communicator =
                                                            make_self_communicator();
                                                        EXPECT_EQ(communicator->name(), "self");
                                                        body(*communicator);
                                                      }}),
                         conformance_name);

}  // namespace tributary::testing_support
