#!/usr/bin/env bash
# What the service costs: bench/service.sh [--rounds N] [--shape NAME] [--seconds S]. Builds, starts a
# tier of one worker, and measures a layer of a step and the pushing of rows beside UCX's own
# benchmark over TCP on the loopback interface, in turns; prints medians and ratios.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

rounds=5 shape=deepseek-v3 seconds=1
while (($#)); do
  case $1 in
    --rounds) rounds=${2-}; shift ;;
    --shape) shape=${2-}; shift ;;
    --seconds) seconds=${2-}; shift ;;
    -h | --help) sed -n '2,4s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "service: unknown argument $1; there are --rounds, --shape and --seconds" >&2; exit 2 ;;
  esac
  shift
done
command -v ucx_perftest >/dev/null || {
  echo "service: no ucx_perftest; install the package ucx-utils" >&2
  exit 1
}

configure release -DTRIBUTARY_BENCH=ON
build release tributary service_bench
exec python3 bench/service.py --rounds "$rounds" --shape "$shape" --seconds "$seconds"
