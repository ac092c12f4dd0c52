#!/usr/bin/env bash
# Mixed traffic with aborts and kills, and with --attacks strangers beside it: bench/soak.sh
# [--minutes M] [--seed N] [--restart-s S] [--attacks]. Builds, starts a tier of two pools whose
# control plane is killed every S seconds, and succeeds only if digests are right, no pool is lost,
# every page is free and memory stays flat.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

case ${1-} in
  -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
configure release
build release tributary
TRIBUTARY_PROGRAM=$PWD/build/release/deploy/tributary exec python3 bench/soak.py "$@"
