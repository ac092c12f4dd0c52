#!/usr/bin/env bash
# Compares decode attention of the CPU backend, and a step of an MLA layer, with this machine's peaks
# and with others' implementations: bench/cpu_limits.sh [FLAG...]. Builds and runs bench/cpu_limits,
# whose flags these are (--help lists them). The peers are what bench/peers.sh finds or installs:
# PyTorch and oneDNN's brgemm in it, ggml, vLLM; without PyTorch, Debian's python3-torch. With
# --python the caller's peers alone. Takes a few minutes and prints medians and shares.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

configure release -DTRIBUTARY_BENCH=ON
build release cpu_limits
if [[ " $* " != *" --python"* ]]; then
  if flags=$(bench/peers.sh); then
    read -ra flags <<<"$flags"
    set -- "${flags[@]}" "$@"
  else
    echo "cpu_limits: the peer is the PyTorch of /usr/bin/python3, if it has one" >&2
  fi
fi
# The number of threads of oneDNN, which one of our threads is compared with.
export OMP_NUM_THREADS=1
exec build/release/bench/cpu_limits "$@"
