#!/usr/bin/env bash
# Decode attention of the CPU backend, and a step of an MLA layer, against what this machine can do
# at most: bench/cpu_limits.sh [FLAG...]. Builds and runs bench/cpu_limits; the flags are its own
# (--help lists them). Takes a few minutes; prints medians and shares.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

configure release -DTRIBUTARY_BENCH=ON
build release cpu_limits
# oneDNN, which one thread is compared with, takes its number of threads from here.
export OMP_NUM_THREADS=1
trace=../shared/traces/conversation_trace.jsonl
if [[ -f $trace && " $* " != *" --trace "* ]]; then set -- --trace "$trace" "$@"; fi
exec build/release/bench/cpu_limits "$@"
