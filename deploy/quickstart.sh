#!/usr/bin/env bash
# The main job on one machine: deploy/quickstart.sh [--workers N]. Installs what is missing, builds
# the program, verifies a pool of CPU workers against golden vectors, replays a workload on it.
set -euo pipefail

workers=4
while (($#)); do
  case $1 in
    --workers) workers=${2-}; shift ;;
    -h | --help) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "quickstart: unknown argument $1; there is --workers N" >&2; exit 2 ;;
  esac
  shift
done
[[ $workers =~ ^[1-9][0-9]{0,3}$ ]] || {
  echo "quickstart: --workers $workers: must be 1 to 9999" >&2
  exit 2
}
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

title() { printf '\n== %s\n' "$*"; }
# run LIMIT_S COMMAND...: shows the command, and ends it when it takes too long.
run() {
  local limit_s=$1
  shift
  printf '$ %s\n' "$*"
  timeout --foreground -k 10 "$limit_s" "$@"
}

deploy/setup.sh build run
title "build"
# A folder that test.sh configured keeps its tests; a fresh one needs the program alone.
if [[ -f build/release/build.ninja ]]; then
  configure release
else
  configure release -DTRIBUTARY_TESTS=OFF -DTRIBUTARY_BENCH=OFF
fi
build release tributary
program=build/release/deploy/tributary

title "verify: $workers workers against the vectors of the reference implementation"
run 120 deploy/mpirun.sh -np "$workers" "$program" verify tests/data/tiny.safetensors

title "replay: the built-in workload on $workers workers"
run 300 deploy/mpirun.sh -np "$workers" "$program" replay \
  --requests 48 --length-scale 0.4 --shape deepseek-v2-lite --layers 1

title "done"
echo "Next: $program --help, or README.md."
