#!/usr/bin/env bash
# The cost of Python: bench/python_calls.sh [--turns N] [--seconds S] [--shape NAME]
# [--only attend|layer]. Builds the program, the C++ half and the wheel, and measures in turns with
# C++: flash_mla_with_kvcache beside the backend's attend, and a layer of a step through a tier of one
# worker beside the C++ client. Prints medians, ratios and differences.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

case ${1-} in
  -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
deploy/setup.sh build run python test
configure release -DTRIBUTARY_BENCH=ON
build release tributary python_peer
wheel=$(deploy/python/wheel.sh)
environment=build/python/bench
[[ -x $environment/bin/python ]] || python3 -m venv "$environment"
"$environment/bin/pip" install -q --disable-pip-version-check --force-reinstall "$wheel"
exec "$environment/bin/python" bench/python_calls.py "$@"
