#!/usr/bin/env bash
# Replaces ssh for mpirun: agent.sh ADDRESS COMMAND... runs the command on a host of lab.py.
set -euo pipefail
address=$1
shift
for host in $TRIBUTARY_TEST_HOSTS; do
  [[ ${host%=*} == "$address" ]] || continue
  exec nsenter --target="${host#*=}" --net --uts --ipc --mount sh -c "$*"
done
echo "agent.sh: no host $address" >&2
exit 255
