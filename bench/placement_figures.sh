#!/usr/bin/env bash
# Figures of placement on a trace, for "A tier in time" of bench/README.md: the highest rate that meets the
# bounds, for each policy, without and with moves of leaves. Predictions: any machine prints the same.
# Usage: bench/placement_figures.sh TRACE [DIRECTORY]   (a quarter of an hour, one core)
set -euo pipefail
trace=${1:?a trace, JSON lines}
out=${2:-bench/results}
program=${TRIBUTARY:-build/release/deploy/tributary}
mkdir -p "$out"
rates() {
  "$program" simulate "$trace" --search "$@" | sed '1,/^highest rate/d;/^simulated in/d;/^$/d'
}
# policies without moves, flags of both
run() {
  local policies=$1
  shift
  echo "$*"
  rates "$@" --spread "$policies" --move-bytes-per-s 0
  echo "with moves"
  rates "$@" --spread auto
}
{
  run single,all,auto --workers 8 --warmup-s 60
  echo
  run single,auto --workers 64 --warmup-s 60
} | tee "$out/placement_chat.txt"
{
  run single,all,auto --workers 8 --length-scale 8 --tpot-ms 25 --warmup-s 200 --measure-s 2000
  echo
  run single,auto --workers 64 --length-scale 8 --tpot-ms 25 --warmup-s 120 --measure-s 1500
  echo
  run single,all,auto --workers 8 --length-scale 8 --tpot-ms 50 --warmup-s 200 --measure-s 2000
  echo
  run single,auto --workers 64 --length-scale 8 --tpot-ms 50 --warmup-s 120 --measure-s 1000
  echo
  run single,all,auto --workers 8 --length-scale 8 --tpot-ms 100 --kv-gib 70 --warmup-s 300 \
    --measure-s 2000
} | tee "$out/placement_long.txt"
