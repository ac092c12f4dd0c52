#!/usr/bin/env bash
# mpirun with the settings that Open MPI 4 and 5 need: deploy/mpirun.sh -np N [OPTION...] PROGRAM...
# Every option of mpirun may be given. Ranks share the processors evenly unless the caller says
# where they go; those of a command with --listen talk on its network.
set -euo pipefail

command -v mpirun >/dev/null || {
  echo "mpirun.sh: mpirun is not installed; Open MPI brings it (Debian: openmpi-bin)" >&2
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
  cpus=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # else it says what those say
  if ((ranks > 0 && ranks <= cpus)); then
    options+=(--use-hwthread-cpus --map-by "slot:PE=$((cpus / ranks))" --bind-to hwthread)
  else
    options+=(--oversubscribe --bind-to none)
  fi
fi
# The pool's data network, as its workers are told it: Open MPI takes every network that it finds
# unless it is told too. What the caller says of it counts.
given=" $* $(compgen -e OMPI_MCA_ || true) "
# Without a --listen (it may stand in a file, and other programs have none) ranks are on this host,
# unless the caller says where they go: then any network may be theirs.
listen=127.0.0.1
! $placed || listen=0.0.0.0
for ((word = i + 2; word < $#; word++)); do
  [[ ${arguments[i + 1]} =~ ^(worker|replay|verify)$ ]] || break
  case ${arguments[word]} in
    --listen) listen=${arguments[word + 1]-} ;;
    --listen=*) listen=${arguments[word]#*=} ;;
  esac
done
if [[ ! $given =~ btl|OMPI_MCA_pml ]]; then
  network=$listen
  case $listen in
    127.* | ::1 | lo) network='' options+=(--mca btl self,vader) ;;  # shared memory: none listens
    0.0.0.0 | ::) network='' ;;
    */*) ;;
    *:*) network=$listen/128 ;;
    *[!0-9.]*) ;;  # a device
    *) network=$listen/32 ;;
  esac
  if [[ -n $network ]]; then
    options+=(--mca btl_tcp_if_include "$network")
    [[ $given =~ oob_tcp_if ]] || options+=(--mca oob_tcp_if_include "$network")
  fi
fi
# mpirun refuses root unless told twice; in a container, root is the user.
if ((EUID == 0)); then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun "${options[@]}" "$@"
