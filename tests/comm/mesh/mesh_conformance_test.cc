// Ranks that met over a transport join the conformance suite.
#include <string>

#include "tests/comm/communicator_conformance.h"
#include "tests/comm/mesh/mesh_ranks.h"

namespace tributary::testing_support {
namespace {

RankLauncher launcher(const char* name, MeshNetwork network, int ranks) {
  return {name + std::to_string(ranks), ranks,
          [=](const auto& body) { run_mesh(network, ranks, body); }};
}

std::vector<RankLauncher> launchers() {
  std::vector<RankLauncher> all;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    all.push_back(launcher("Local", MeshNetwork::kLocal, ranks));
  }
  for (const int ranks : {2, 4}) all.push_back(launcher("Tcp", MeshNetwork::kTcp, ranks));
  return all;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Mesh, CommunicatorConformance, testing::ValuesIn(launchers()),
                         conformance_name);

}  // namespace tributary::testing_support
