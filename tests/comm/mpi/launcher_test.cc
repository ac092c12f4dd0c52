// The launcher is recognised by the environment.
#include "comm/mpi/launcher.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tributary {
namespace {

TEST(Launcher, IsToldByItsVariables) {
  constexpr const char* kVariables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                        "PMI_SIZE"};
  for (const char* name : kVariables) unsetenv(name);
  EXPECT_FALSE(launched_by_mpirun());
  for (const char* name : kVariables) {
    setenv(name, "0", 1);
    EXPECT_TRUE(launched_by_mpirun()) << name;
    unsetenv(name);
  }
  setenv("SLURM_PROCID", "0", 1);  // srun without MPI
  EXPECT_FALSE(launched_by_mpirun());
  unsetenv("SLURM_PROCID");
}

}  // namespace
}  // namespace tributary
