#!/usr/bin/env bash
# Everything that needs a processor with AMX: bench/amx_check.sh [--rehearse] [PYTHON]. Builds,
# compares 10^8 random tiles of the processor with emulated ones, runs every test of the CPU kernels
# and of pools on both, and measures: attention, products and a step of a layer beside the machine's
# peaks, beside the other instruction sets and beside PyTorch and oneDNN's brgemm (PYTHON, or what
# bench/peer_torch.sh installs). Writes the results to bench/results/PROCESSOR-DATE.txt. Meant to end
# within 10 minutes once built. --rehearse does the same on a machine without AMX, with the emulation
# in the tiles' place and whatever instruction set is best: it shows that the script works, and
# writes to build/amx_check.txt. Status 0: all passed; 1: some failed; 2: wrong flags; 3: no AMX here,
# nothing was done.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

rehearse=0
if [[ ${1-} == --rehearse ]]; then
  rehearse=1
  shift
fi
case ${1-} in
  -*) echo "usage: bench/amx_check.sh [--rehearse] [PYTHON]" >&2; exit 2 ;;
esac
python=${1-}
if ((rehearse == 0)) && ! grep -qw amx_bf16 /proc/cpuinfo; then
  echo "amx_check: no AMX here (/proc/cpuinfo has no amx_bf16): nothing was tested or measured"
  exit 3
fi

mkdir -p build bench/results
model=$(sed -nE '/^model name/ {s/.*: *//p; q}' /proc/cpuinfo)
if ((rehearse)); then
  result=build/amx_check.txt
  tiles=(2000000 --emulated)
  set_name=
else
  result=bench/results/$(tr -cs 'A-Za-z0-9\n' - <<<"$model" | tr '[:upper:]' '[:lower:]')-$(date +%F).txt
  tiles=(100000000)
  set_name=/AMX_BF16
fi
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
    build release kernels_cpu_test compare_tiles pool_test cpu_limits tributary
}
tests=build/release/tests
program=build/release/deploy/tributary
golden() {
  local files=(tests/data/tiny.safetensors) folder=${TRIBUTARY_SHARED_DIR:-../shared}
  if compgen -G "$folder/golden/*.safetensors" >/dev/null; then
    files+=("$folder"/golden/*.safetensors)
  fi
  "$program" verify --backend "cpu$set_name" --query bf16 "${files[@]}"
}
export -f configure build build_all golden
export program set_name

# limits TITLE LIMIT_S FLAG...: a part of the measurements, as it is printed.
limits() {
  local title=$1 limit_s=$2 begin=$SECONDS
  shift 2
  echo
  echo "== $title"
  OMP_NUM_THREADS=1 timeout --kill-after=10 "$limit_s" build/release/bench/cpu_limits "$@" ||
    { echo "FAILED  $title"; failed=1; }
  echo "($((SECONDS - begin)) s)"
}

{
  echo "$model, $(date -u +%FT%TZ), $(nproc) CPUs, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  ((rehearse)) && echo "REHEARSAL on a machine without AMX: no figure below is one of tiles"
  echo
  check build 1800 bash -c build_all
  if [[ -n $python ]]; then
    peers=(--python "$python")
  elif flags=$(bench/peer_torch.sh); then
    read -ra peers <<<"$flags"
  else
    peers=()
  fi
  begin=$SECONDS
  if ((failed == 0)); then
    "$program" info | grep -E '^(instruction sets|processor) ' || failed=1
    if ((rehearse == 0)) && ! "$program" info | grep -q '^instruction sets.*AMX_BF16'; then
      echo "FAILED  info: the processor has AMX, but its tiles are not usable"
      failed=1
    fi
    check tiles 240 "$tests/kernels/compare_tiles" "${tiles[@]}"
    tail -n 1 build/amx_check.tiles.log
    check kernels 180 "$tests/kernels/kernels_cpu_test"
    check pools 240 "$tests/deploy/pool/pool_test" --gtest_filter='PoolBits*'
    check golden 60 bash -c golden
    limits "attention by instruction set: 128 heads 1,000 GFLOP/s or 37% of the peak (131k: 900 or 33%), 16 heads 330 or 85% of read, 4 and 1 heads 90% of read" \
      240 --threads 1 --heads 128,16,4,1 --parts sets
    limits "PyTorch and oneDNN's brgemm: 128 heads twice the better" \
      200 --threads 1 --parts peers "${peers[@]}"
    limits "two threads: 1.85 x" 100 --threads 1,2 --heads 128,16 --lengths 4096 --parts heads
    limits "a step of a layer: products 75% of read, the step 4 x AVX3_BF16's; the rest 90% of its bytes" \
      150 --threads 1 --parts steps,layer,small
  fi
  echo
  echo "$((SECONDS - begin)) s after the build"
  ((failed == 0)) && echo "all passed" || echo "NOT all passed"
} > >(tee "$result") 2>&1
wait $! 2>/dev/null || true
echo "written to $result"
! grep -q '^NOT all passed' "$result"
