#!/usr/bin/env bash
# Mixed traffic with aborts and kills, and with --attacks strangers beside it: bench/soak.sh
# [--minutes M] [--hours H] [--seed N] [--restart-s S] [--attacks]. Builds, starts a tier of two
# pools whose control plane is killed every S seconds, and succeeds only if digests are right, no
# pool is lost, every page is free and memory stays flat.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

seconds=180 seed=1 restart_s=30 attacks=()
while (($#)); do
  case $1 in
    --minutes) seconds=$((60 * ${2-0})); shift ;;
    --hours) seconds=$((3600 * ${2-0})); shift ;;
    --seed) seed=${2-}; shift ;;
    --restart-s) restart_s=${2-}; shift ;;
    --attacks) attacks=(--attacks) ;;
    -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "soak: unknown argument $1; there are --minutes, --hours, --seed, --restart-s and --attacks" >&2; exit 2 ;;
  esac
  shift
done
((seconds > 0)) || { echo "soak: --minutes and --hours are whole numbers above 0" >&2; exit 2; }

configure release
build release tributary
TRIBUTARY_PROGRAM=$PWD/build/release/deploy/tributary \
  exec python3 bench/soak.py --seconds "$seconds" --seed "$seed" \
    --restart-s "$restart_s" ${attacks[@]+"${attacks[@]}"}
