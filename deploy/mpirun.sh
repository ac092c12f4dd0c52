#!/usr/bin/env bash
# mpirun with the settings that Open MPI 4 needs: deploy/mpirun.sh -np N [OPTION...] PROGRAM...
# Every option of mpirun may be given. Ranks share the processors evenly unless the caller says
# where they go.
set -euo pipefail

command -v mpirun >/dev/null || {
  echo "mpirun.sh: mpirun is not installed (run deploy/setup.sh run)" >&2
  exit 127
}

ranks=0
placed=false  # the caller or a batch system says where ranks go: leave mapping and binding alone
[[ -z ${SLURM_JOB_ID:-}${PBS_JOBID:-}${LSB_JOBID:-} ]] || placed=true
arguments=("$@")
for ((i = 0; i < $#; i++)); do
  option=${arguments[i]}
  [[ $option == -* ]] || break  # the program: what follows is its own
  case $option in
    -np | -n | -c | --np | --n) ranks=${arguments[++i]-} ;;
    *host | -H | *hostfile | *machinefile | *-bind-to | *-map-by | *-rankfile | -rf)
      placed=true
      i=$((i + 1)) ;;
    *-mca | *-gmca) i=$((i + 2)) ;;
    *oversubscribe | *-enable-recovery | *-tag-output | *-report-bindings | *-use-hwthread-cpus | \
      *-allow-run-as-root | *-display-* | *-timestamp-output | *-nolocal | -v | -q | -h | --help | \
      *-version | -V) ;;
    *) i=$((i + 1)) ;;
  esac
done
[[ $ranks =~ ^[0-9]{1,6}$ ]] || {
  echo "mpirun.sh: -np $ranks: not a number of ranks" >&2
  exit 2
}

# Ranks that wait give their core to ranks that work; without it an exchange between more ranks
# than cores takes scheduler ticks (20-50 ms) instead of a fraction of a millisecond.
options=(--mca mpi_yield_when_idle 1)
if ! $placed; then
  cpus=$(nproc)
  if ((ranks > 0 && ranks <= cpus)); then
    options+=(--use-hwthread-cpus --map-by "slot:PE=$((cpus / ranks))" --bind-to hwthread)
  else
    options+=(--oversubscribe --bind-to none)
  fi
fi
# mpirun refuses root unless told twice; in a container, root is the user.
if ((EUID == 0)); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun "${options[@]}" "$@"
