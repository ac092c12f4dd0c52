#!/usr/bin/env bash
# Everything that needs a GPU: bench/gpu_check.sh [--quick]. Builds, runs every GPU test, several
# workers on one GPU, compute-sanitizer on a small set, and measures; writes what it saw to
# bench/results/DEVICE-DATE.txt. Under 8 minutes on 16 cores, --quick 3. Status 0: all passed; 1: not
# all; 2: wrong flags; 3: no GPU here, nothing was done.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

quick=no
case ${1-} in
  "") ;;
  --quick) quick=yes ;;
  *) echo "usage: bench/gpu_check.sh [--quick]" >&2; exit 2 ;;
esac
if ! device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) ||
  [[ -z $device ]]; then
  echo "gpu_check: no GPU here (nvidia-smi finds none): nothing was tested or measured"
  exit 3
fi

mkdir -p build bench/results
result=bench/results/$(tr -cs 'A-Za-z0-9\n' - <<<"$device" | tr A-Z a-z)-$(date +%F).txt
failed=0

# check NAME LIMIT_S COMMAND...: its output goes to a log, its verdict to the result.
check() {
  local name=$1 limit_s=$2 begin=$SECONDS
  shift 2
  local log=build/gpu_check.$name.log
  if timeout --kill-after=10 "$limit_s" "$@" >"$log" 2>&1; then
    echo "passed  $name, $((SECONDS - begin)) s"
  else
    echo "FAILED  $name, $((SECONDS - begin)) s: the end of $log:"
    tail -n 25 "$log"
    failed=1
  fi
}

build_all() {
  configure cuda -DTRIBUTARY_TESTS=ON -DTRIBUTARY_BENCH=ON &&
    build cuda gpu_backend_test gpu_grid_test gpu_communicator_test gpu_pool_test gpu_bench tributary
}

program=build/cuda/deploy/tributary
sharing() {
  local run workers digest first=
  for run in 1 2 4 "1 --disable-cuda-graph"; do
    workers=${run%% *}
    # shellcheck disable=SC2086 # a number, or a number and a flag
    deploy/mpirun.sh -np "$workers" --oversubscribe --bind-to none "$program" replay \
      --backend cuda/0 --requests 12 --length-scale 0.1 --spread all --leaf-tokens 256 \
      --canary-rate 0.02 --json "build/gpu_check.$workers.json" ${run#"$workers"}
    digest=$(sed -nE 's/.*"digest": *"?([0-9a-fx]+)"?.*/\1/p' "build/gpu_check.$workers.json")
    [[ -n $digest && ${first:=$digest} == "$digest" ]] ||
      { echo "digest of $run: '$digest', of 1: '$first'"; return 1; }
  done
}
golden() {
  local files=(tests/data/tiny.safetensors) folder=${TRIBUTARY_SHARED_DIR:-../shared}
  if compgen -G "$folder/golden/*.safetensors" >/dev/null; then
    files+=("$folder"/golden/*.safetensors)
  fi
  "$program" verify --backend cuda --query bf16 "${files[@]}"
}
sanitize() {
  local tool=$1
  # One case of every kernel: the whole suite takes minutes under the sanitizer.
  compute-sanitizer --tool "$tool" --error-exitcode 9 build/cuda/tests/gpu/gpu_backend_test \
    --gtest_filter='*AttendFollowsTheCausalBound*:*MergeIsTheWeightedMean*:*GemmTakesStrides*:*RmsNorm*:*Rope*:*RowsFromOutsideAreAsAppended*:*MemoryIsAligned*:*DenseAttendWithoutKeys*'
}
export -f configure build build_all sharing golden sanitize
export program

{
  echo "$device, $(date -u +%FT%TZ), $(nproc) cores, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader
  echo
  check build 300 bash -c build_all
  if ((failed == 0)); then
    check tests 240 ctest --test-dir build/cuda -L '^gpu$' --no-tests=error --output-on-failure
    check golden 60 bash -c golden
    check sharing 120 bash -c sharing
    if ! command -v compute-sanitizer >/dev/null; then
      echo "SKIPPED memcheck, racecheck: no compute-sanitizer"
    else
      check memcheck 90 bash -c 'sanitize memcheck'
      [[ $quick == yes ]] || check racecheck 120 bash -c 'sanitize racecheck'
    fi
    echo
    flags=()
    [[ $quick == no ]] || flags=(--quick)
    timeout --kill-after=10 180 build/cuda/bench/gpu_bench "${flags[@]}" ||
      { echo "FAILED  speed"; failed=1; }
    echo
    timeout --kill-after=10 120 "$program" bench --backend cuda --steps 1x4096,128x4096 \
      --json build/gpu_check.machine.json || { echo "FAILED  bench"; failed=1; }
  fi
  echo
  ((failed == 0)) && echo "all passed" || echo "NOT all passed"
} > >(tee "$result") 2>&1
wait $! 2>/dev/null || true
echo "written to $result"
! grep -q '^NOT all passed' "$result"
