// The launchers' variables.
#include "comm/mpi/launcher.h"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace tributary {

bool launched_by_mpirun() {
  // Open MPI's own variable; then those of PMIx and PMI, the protocols between launchers and MPI
  // libraries. Not SLURM_PROCID: srun sets it without MPI as well.
  constexpr std::array kVariables = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
  return std::ranges::any_of(kVariables, [](const char* name) {
    return std::getenv(name) != nullptr;  // NOLINT(concurrency-mt-unsafe): nothing here sets any
  });
}

}  // namespace tributary
