#!/usr/bin/env bash
# Figures of placement on a trace, for "A tier in time" of bench/README.md: the highest rate that meets the
# bounds, for each policy, without and with moves of leaves. Predictions: any machine prints the same.
# Usage: bench/placement_figures.sh TRACE [DIRECTORY]   (a quarter of an hour, one core)
set -euo pipefail
trace=${1:?a trace, JSON lines}
out=${2:-bench/results/placement}
program=${TRIBUTARY:-build/release/deploy/tributary}
mkdir -p "$out"
# name, flags of both, policies without moves
run() {
  local name=$1 policies=$2
  shift 2
  "$program" simulate "$trace" --search "$@" --spread "$policies" --move-bytes-per-s 0 \
    | sed '/^simulated in/d' > "$out/$name.txt"
  "$program" simulate "$trace" --search "$@" --spread auto | sed '/^simulated in/d' \
    > "$out/$name-moves.txt"
  for file in "$out/$name.txt" "$out/$name-moves.txt"; do
    echo "$file"
    sed -n '/^highest rate/,$p' "$file" | sed '1d;/^$/d'
  done
}
run chat-8 single,all,auto --workers 8 --warmup-s 60
run chat-64 single,auto --workers 64 --warmup-s 60
run long-8 single,all,auto --workers 8 --length-scale 8 --tpot-ms 25 --warmup-s 200 --measure-s 2000
run long-8-50ms single,all,auto --workers 8 --length-scale 8 --tpot-ms 50 --warmup-s 200 \
  --measure-s 2000
run long-8-memory single,all,auto --workers 8 --length-scale 8 --tpot-ms 100 --kv-gib 70 \
  --warmup-s 300 --measure-s 2000
run long-64 single,auto --workers 64 --length-scale 8 --tpot-ms 25 --warmup-s 120 --measure-s 1500
run long-64-50ms single,auto --workers 64 --length-scale 8 --tpot-ms 50 --warmup-s 120 \
  --measure-s 1000
