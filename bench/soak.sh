#!/usr/bin/env bash
# Mixed traffic with aborts and kills: bench/soak.sh [--minutes M] [--hours H] [--seed N]. Builds,
# starts a tier of two pools, and succeeds only if every page is free and memory stays flat.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

seconds=180 seed=1
while (($#)); do
  case $1 in
    --minutes) seconds=$((60 * ${2-0})); shift ;;
    --hours) seconds=$((3600 * ${2-0})); shift ;;
    --seed) seed=${2-}; shift ;;
    -h | --help) sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "soak: unknown argument $1; there are --minutes, --hours and --seed" >&2; exit 2 ;;
  esac
  shift
done
((seconds > 0)) || { echo "soak: --minutes and --hours are whole numbers above 0" >&2; exit 2; }

configure release
build release tributary
TRIBUTARY_PROGRAM=$PWD/build/release/deploy/tributary \
  exec python3 bench/soak.py --seconds "$seconds" --seed "$seed"
