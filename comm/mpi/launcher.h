// Whether an MPI launcher started this process, judged by environment variables.
#pragma once

namespace tributary {

/// True when mpirun, mpiexec or srun with an MPI plug-in started this process. Does not initialise
/// MPI.
[[nodiscard]] bool launched_by_mpirun();

}  // namespace tributary
