#!/usr/bin/env bash
# The cost of the service: bench/service.sh [--rounds N] [--shape NAME] [--seconds S]
# [--transports tcp,tls,ucx,ucx-shm]. Builds, starts a tier of one worker, and measures a layer of a
# step and the pushing of rows, in turns with plain sockets that move the same bytes, and one
# transport in turns with another. Prints medians and ratios.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

case ${1-} in
  -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
configure release -DTRIBUTARY_BENCH=ON
build release tributary service_bench
exec python3 bench/service.py "$@"
