#!/usr/bin/env bash
# Everything that needs a processor with AMX: bench/amx_check.sh [PYTHON]. Builds, compares the
# processor's tiles with the emulated ones, runs every test of the CPU kernels and of pools on both,
# and measures: attention and products beside the machine's peaks and beside PyTorch, where PYTHON
# (default: python3) has it. Writes the results to bench/results/PROCESSOR-DATE.txt. Meant to end
# within 10 minutes once built. Status 0: all passed; 1: some failed; 2: wrong flags; 3: no AMX here,
# nothing was done.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

case ${1-} in
  -*) echo "usage: bench/amx_check.sh [PYTHON]" >&2; exit 2 ;;
esac
python=${1:-$(command -v python3)}
if ! grep -qw amx_bf16 /proc/cpuinfo; then
  echo "amx_check: no AMX here (/proc/cpuinfo has no amx_bf16): nothing was tested or measured"
  exit 3
fi

mkdir -p build bench/results
model=$(sed -nE '/^model name/ {s/.*: *//p; q}' /proc/cpuinfo)
result=bench/results/$(tr -cs 'A-Za-z0-9\n' - <<<"$model" | tr '[:upper:]' '[:lower:]')-$(date +%F).txt
failed=0

# check NAME LIMIT_S COMMAND...: writes its output to a log and the verdict to the result.
check() {
  local name=$1 limit_s=$2 begin=$SECONDS
  shift 2
  local log=build/amx_check.$name.log
  if timeout --kill-after=10 "$limit_s" "$@" >"$log" 2>&1; then
    echo "passed  $name, $((SECONDS - begin)) s"
  else
    echo "FAILED  $name, $((SECONDS - begin)) s: the end of $log:"
    tail -n 25 "$log"
    failed=1
  fi
}

build_all() {
  configure release -DTRIBUTARY_TESTS=ON -DTRIBUTARY_BENCH=ON &&
    build release kernels_cpu_test pool_test cpu_limits tributary
}
tests=build/release/tests
program=build/release/deploy/tributary
# 5 million random tiles; a repetition has a seed of its own.
compare_tiles() {
  "$tests/kernels/kernels_cpu_test" --gtest_filter=AmxTiles.TheProcessor* --gtest_shuffle \
    --gtest_repeat=250 --gtest_throw_on_failure --gtest_brief=1
}
golden() {
  local files=(tests/data/tiny.safetensors) folder=${TRIBUTARY_SHARED_DIR:-../shared}
  if compgen -G "$folder/golden/*.safetensors" >/dev/null; then
    files+=("$folder"/golden/*.safetensors)
  fi
  "$program" verify --backend cpu/AMX_BF16 --query bf16 "${files[@]}"
}
export -f configure build build_all compare_tiles golden
export tests program

{
  echo "$model, $(date -u +%FT%TZ), $(nproc) CPUs, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo
  check build 1800 bash -c build_all
  if ((failed == 0)); then
    "$program" info | grep -E '^(instruction sets|processor) ' || failed=1
    if ! "$program" info | grep -q '^instruction sets.*AMX_BF16'; then
      echo "FAILED  info: the processor has AMX, but its tiles are not usable"
      failed=1
    fi
    check tiles 120 bash -c compare_tiles
    check kernels 120 "$tests/kernels/kernels_cpu_test"
    check pools 120 "$tests/deploy/pool/pool_test" --gtest_filter='PoolBits*'
    check golden 60 bash -c golden
    echo
    OMP_NUM_THREADS=1 timeout --kill-after=10 400 build/release/bench/cpu_limits \
      --heads 128,16,4,1 --python "$python" || { echo "FAILED  speed"; failed=1; }
  fi
  echo
  ((failed == 0)) && echo "all passed" || echo "NOT all passed"
} > >(tee "$result") 2>&1
wait $! 2>/dev/null || true
echo "written to $result"
! grep -q '^NOT all passed' "$result"
