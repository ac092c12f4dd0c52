// Whether an MPI launcher started this process, told from the environment alone.
#pragma once

namespace tributary {

/// True when mpirun, mpiexec or srun with an MPI plug-in started this process. Initialises nothing.
[[nodiscard]] bool launched_by_mpirun();

}  // namespace tributary
