// Tests that run on every rank of an mpirun: their main program, and its MPI environment.
#pragma once

#include "comm/mpi/mpi_environment.h"

namespace tributary::testing_support {

/// The environment of the program; valid in every test and wherever test parameters are made.
[[nodiscard]] const MpiEnvironment& mpi_environment();

}  // namespace tributary::testing_support
