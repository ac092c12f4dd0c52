#!/usr/bin/env bash
# Everything that needs a processor with AMX: bench/amx_check.sh [--rehearse | --budget] [PYTHON].
# Builds, compares 10^8 random tiles of the processor with emulated ones, runs every test of the CPU
# kernels and of pools on both, and measures: attention, products and a step of a layer beside the
# machine's peaks, beside the other instruction sets and beside other kernels (the PyTorch of PYTHON,
# or what bench/peers.sh finds and installs). Writes the results to
# bench/results/PROCESSOR-DATE.txt. Once built it ends within 10 minutes: each part has a limit, and
# --budget prints them, their sum, and nothing else. --rehearse does the same on a machine without
# AMX, with the emulation in the tiles' place and whatever instruction set is best: it shows that the
# script works, and writes to build/amx_check.txt.
# Status 0: all passed; 1: some did not; 2: wrong flags; 3: no AMX here, nothing was done.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

# Seconds that a part may take; what it printed until then counts. Calm machines need less than half.
declare -A limit_s=([tiles]=85 [kernels]=40 [pools]=65 [golden]=15 [sets]=105 [peers]=80
  [few-heads-peers]=30 [two-threads]=40 [step]=60 [layer]=25 [small]=35)
budget() {
  local part sum=0
  for part in "${!limit_s[@]}"; do
    echo "$part ${limit_s[$part]}"
  done | sort
  for part in "${!limit_s[@]}"; do sum=$((sum + limit_s[$part] + 1)); done  # a second to end it
  echo "at most $sum s after the build"
  ((sum < 600))
}

rehearse=0
case ${1-} in
  --budget) budget; exit ;;
  --rehearse) rehearse=1; shift ;;
esac
case ${1-} in
  -*) echo "usage: bench/amx_check.sh [--rehearse | --budget] [PYTHON]" >&2; exit 2 ;;
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
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  local log=build/amx_check.$name.log
  if timeout --kill-after=1 "$limit" "$@" >"$log" 2>&1; then
    echo "passed  $name, $((SECONDS - begin)) s"
  else
    echo "FAILED  $name, $((SECONDS - begin)) s of at most $limit: the end of $log:"
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

# limits NAME TITLE FLAG...: a part of the measurements, as it is printed. One that reaches its limit
# has measured less: goals without a figure are not reached.
limits() {
  local name=$1 title=$2 begin=$SECONDS status=0
  shift 2
  echo
  echo "== $title"
  OMP_NUM_THREADS=1 timeout --kill-after=1 "${limit_s[$name]}" build/release/bench/cpu_limits "$@" ||
    status=$?
  case $status in
    0) ;;
    124 | 137) echo "STOPPED $name: its ${limit_s[$name]} s are over" ;;
    *) echo "FAILED  $name: status $status"; failed=1 ;;
  esac
  echo "($((SECONDS - begin)) s)"
}

{
  echo "$model, $(date -u +%FT%TZ), $(nproc) CPUs, commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  ((rehearse)) && echo "REHEARSAL on a machine without AMX: no figure below is one of tiles"
  echo
  budget | tail -n 1
  check build 1800 bash -c build_all
  if [[ -n $python ]]; then
    peers=(--python "$python")
  elif flags=$(bench/peers.sh); then
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
    check tiles "${limit_s[tiles]}" "$tests/kernels/compare_tiles" "${tiles[@]}"
    tail -n 1 build/amx_check.tiles.log
    check kernels "${limit_s[kernels]}" "$tests/kernels/kernels_cpu_test"
    check pools "${limit_s[pools]}" "$tests/deploy/pool/pool_test" --gtest_filter='PoolBits*'
    check golden "${limit_s[golden]}" bash -c golden
    limits sets "attention by instruction set" --threads 1 --heads 128,16,4,1 --parts sets
    limits peers "the peers, 128 heads" \
      --threads 1 --heads 128 --lengths 32768 --parts peers "${peers[@]}"
    limits few-heads-peers "the peers, 16 heads" \
      --threads 1 --heads 16 --lengths 32768 --parts peers "${peers[@]}"
    limits two-threads "two threads" --threads 1,2 --heads 128,16 --lengths 4096 --parts heads
    limits step "a step of a layer by instruction set, products with weights" \
      --threads 1 --parts steps,weights
    limits layer "the parts of a step" --threads 1 --parts layer
    limits small "what else a step does" --threads 1 --parts small
  fi
  echo
  echo "$((SECONDS - begin)) s after the build"
  ((failed == 0)) && echo "all passed" || echo "NOT all passed"
} > >(tee "$result") 2>&1
wait $! 2>/dev/null || true
echo "written to $result"
! grep -q '^NOT all passed' "$result"
