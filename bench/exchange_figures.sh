#!/usr/bin/env bash
# Bytes that rounds exchange under a trace, beside the least that their placements need: "What rounds
# exchange" of bench/README.md. Predicted times decide what is placed where and how it travels; the bytes are
# those of full plans. Any machine prints the same.
# Usage: bench/exchange_figures.sh TRACE [flags of `tributary simulate`]   (seconds, one core)
set -euo pipefail
trace=${1:?a trace, JSON lines}
shift
program=${TRIBUTARY:-build/release/deploy/tributary}
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT
echo "| workers | lengths | spread | MB a token | at least | step, ms |"
echo "| --- | --- | --- | --- | --- | --- |"
for workers in 8 64; do
  for scale in 1 8; do
    "$program" simulate "$trace" --workers "$workers" --running $((4 * workers)) \
      --spread auto,all --length-scale "$scale" --warmup-s 20 --measure-s 5 --check-every 20 \
      --json "$reports/json" "$@" > "$reports/text"
    python3 - "$reports" "$scale" << 'PYTHON'
import json, sys
folder, scale = sys.argv[1:]
report = json.load(open(f"{folder}/json"))
for point in report["points"]:
    checks = point["checks"]
    if not checks["steps"] or not checks["bytes_agree"]:
        sys.exit("no step was checked, or bytes are not those of the plans")
    row = [str(report["workers"]), f"x {scale}", f"`{point['spread']}`"]
    row += [f"{checks[bytes] / checks['tokens'] / 1e6:.3f}"
            for bytes in ("plan_bytes", "least_bytes")]
    row.append(f"{point['tpot_ms']['p50']:.2f}")
    print("| " + " | ".join(row) + " |")
PYTHON
  done
done
