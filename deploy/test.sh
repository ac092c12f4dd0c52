#!/usr/bin/env bash
# Every test: deploy/test.sh [--quick] [--long] [--only STAGE]... (--help lists the stages).
# Installs what is missing, builds, tests; ends with one line a stage and `N passed, N failed`.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Stage, limit in seconds, what it does. The limits bound a hang, on the slowest machine too.
stages=(
  "release|1800|build with optimisation, warnings as errors, all but the unit tests of asan"
  "ctest|3600|kernels, bits and real processes, in the release build"
  "python|1200|the Python package: a wheel, tested in an environment of its own"
  "format|60|clang-format on every source, bash -n on every script"
  "tidy|2400|clang-tidy on the sources that changed since they passed"
  "asan|2400|unit tests under AddressSanitizer and UndefinedBehaviorSanitizer"
  "fuzz|600|libFuzzer, in the same build, on everything that parses bytes from outside"
  "tsan|1800|tests of ranks as threads under ThreadSanitizer"
  "engines|1800|transformers through tiers, SmolLM2 and FlashMLA's grid with more than in python"
  "vllm|2400|vLLM decodes through tiers; with --only alone"
  "wheel|3600|the package's wheels in an empty Debian 13 and 12, a tier on other hosts; as root"
  "gpu_pack|3600|what travels to a machine with a GPU, in a bare Debian 11 and 13; with --only alone, as root"
  "cuda12|1200|the CUDA sources with the oldest tools of CUDA 12; with --only alone"
  "debian13|3600|quick start, release and ctest in an empty Debian 13; with --only alone, as root"
  "debian12|3600|the same in an empty Debian 12"
)
apart=" engines vllm wheel gpu_pack cuda12 debian13 debian12 "  # run before something is called done, not with every change
# Each case runs once: unit tests in the asan stage, the rest in ctest; kernels and bits in both, since
# they depend on the compiler. What AddressSanitizer leaves out runs in ctest alone (NOT_ASAN in
# tests/**/CMakeLists.txt): it sees the same accesses in the narrow instruction sets, in small vectors
# as in large ones, and of a GPU kernel on emulated threads, ten times slower under it, in few heads
# and rows as in many. The tests of every value of every flag parse thousands of command lines with a
# library that is not ours, and the search over plans runs the same code for each model of GPU.
# Test programs that run threads of ours, which the tsan stage builds and runs. One instruction set is
# like another to ThreadSanitizer, so of the kernels' conformance only the cases with several threads
# run (CMakePresets.json); thousands of proofs, which take the transport's thread seconds there, are
# left to the stage asan.
threaded=(thread_communicator_test mesh_communicator_test core_ingest_test pool_test pool_bits_test
  kernels_cpu_test deploy_runtime_test local_transport_test worker_test worker_service_test deploy_client_test
  deploy_local_test)

# Layout and findings differ from version to version: the sources follow that of Debian 12.
clang=14
left_out=77  # a stage's exit status
export TRIBUTARY_WERROR=ON

usage() {
  cat <<'TEXT'
Usage: deploy/test.sh [--quick] [--long] [--only STAGE]...
  --quick        the stages release and ctest alone, with the unit tests: a developer's check
  --long         before something is called done: also the tests with the label long (more real
                 processes; what nvcc says of the GPU kernels, which it compiles once more); fuzz
                 for 60 s a target instead of 5, from another seed each time; clang-tidy in depth,
                 on tests and benchmarks too
  --only STAGE   this stage alone; may be given several times

Stages:
TEXT
  local stage name limit_s what
  for stage in "${stages[@]}"; do
    IFS='|' read -r name limit_s what <<<"$stage"
    printf '  %-9s%s (at most %s s)\n' "$name" "$what" "$limit_s"
  done
}

# sources SUFFIX...: our files with these suffixes, separated by NUL.
sources() {
  local suffix names=()
  for suffix in "$@"; do names+=(-o -name "*.$suffix"); done
  find core kernels comm deploy tests bench .ci -type f \( "${names[@]:1}" \) -print0
}

# run_ctest PRESET OPTION...: leaves the counts where the summary reads them.
run_ctest() {
  local preset=$1
  shift
  rm -rf "build/$preset/cases"
  ctest --test-dir "build/$preset" --no-tests=error --output-on-failure \
    --output-junit "$PWD/$results/$stage_name.xml" "$@" | sed -u '/^ *Start /d'
}

# Most of a build's time goes into headers: sources are compiled together, as the sanitizers' and
# the package's are. The quick start, in an empty system, compiles the program's one by one.
stage_release() {
  local unit=OFF
  [[ $quick == no ]] || unit=ON
  configure release -DTRIBUTARY_TESTS=ON -DTRIBUTARY_BENCH=ON -DTRIBUTARY_UNIT_TESTS="$unit" \
    -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
  build release
}

stage_ctest() {
  local without=(-LE '^long$')
  [[ $long == no ]] || without=()
  run_ctest release ${without[@]+"${without[@]}"}
}

# needs PROGRAM: leaves the stage out on a system without it.
needs() {
  command -v "$1" >/dev/null || {
    echo "$stage_name: left out, there is no $1 here"
    exit "$left_out"
  }
}

# The program that the tests run a tier with (built already, unless a stage runs alone), and the
# package, whose path is left in $wheel.
program_and_wheel() {
  [[ -f build/release/build.ninja ]] || configure release
  build release tributary
  wheel=$(deploy/python/wheel.sh)
}

# pip_install ENVIRONMENT OPTION...: what pip has downloaded stays.
pip_install() {
  local environment=$1
  shift
  "$environment/bin/pip" install -q --disable-pip-version-check \
    --cache-dir "$PWD/build/python/downloads" "$@" || {
    echo "$stage_name: NOT TESTED: what the tests need is not to be had from the package index" >&2
    return 1
  }
}

# run_pytest ENVIRONMENT PATH...: with the program that was built.
run_pytest() {
  local environment=$1
  shift
  TRIBUTARY_PROGRAM=$PWD/build/release/deploy/tributary "$environment/bin/python" \
    -m pytest -q -p no:cacheprovider -rs --junitxml "$results/$stage_name.xml" "$@"
}

stage_python() {
  local wheel environment=build/python/environment
  program_and_wheel
  rm -rf "$environment"
  python3 -m venv "$environment"
  pip_install "$environment" "$wheel" pytest ml_dtypes mypy
  pip_install "$environment" --no-deps -r deploy/python/runner.txt
  run_pytest "$environment" tests/deploy/python ${not_long[@]+"${not_long[@]}"}
}

# environment_of NAME: build/python/NAME, of the packages that deploy/python/NAME.txt lists, with the
# wheel. torch is 540 MB and the environment 1.8 GB: it is kept while what makes it is the same.
environment_of() {
  local environment=build/python/$1 packages=deploy/python/$1.txt
  local libraries=tests/deploy/python/engines/absent_libraries.py
  if ! cat "$packages" "$libraries" | cmp -s - "$environment/made_of"; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    pip_install "$environment" --no-deps -r "$packages"
    "$environment/bin/python" "$libraries" "$environment"/lib/python3*/site-packages/torch/lib
    cat "$packages" "$libraries" >"$environment/made_of"
  fi
  pip_install "$environment" --no-deps --force-reinstall "$wheel"
}

stage_engines() {
  local wheel
  program_and_wheel
  environment_of engines
  TRIBUTARY_ENGINES=1 run_pytest build/python/engines \
    tests/deploy/python/{smollm2_test.py,engines}
}

stage_vllm() {
  local wheel
  program_and_wheel
  environment_of vllm
  TRIBUTARY_VLLM=1 run_pytest build/python/vllm tests/deploy/python/vllm \
    ${not_long[@]+"${not_long[@]}"}
}

# 13: one wheel for CPython 3.12 and later; 12: CPython 3.11's own.
stage_wheel() {
  local suite
  [[ -f build/release/build.ninja ]] || configure release
  build release tributary
  for suite in trixie bookworm; do
    TRIBUTARY_PROGRAM=$PWD/build/release/deploy/tributary .ci/wheel_root.sh "$suite"
  done
}

stage_format() {
  sources sh | xargs -0 -n 1 bash -n
  needs "clang-format-$clang"
  sources h cc cu cuh | xargs -0 "clang-format-$clang" --dry-run -Werror
}

stage_tidy() {
  needs "clang-tidy-$clang"
  # Configured only, for the commands of the single sources.
  configure release -B build/tidy -DTRIBUTARY_TESTS=ON -DTRIBUTARY_BENCH=ON
  # Depth, and tests and benchmarks, take twice as long again each: with --long.
  local folders=(core kernels comm deploy) depth=()
  [[ $long == no ]] || { folders+=(tests bench) depth=(--deep); }
  .ci/tidy.py build/tidy ${depth[@]+"${depth[@]}"} -j "$CMAKE_BUILD_PARALLEL_LEVEL" \
    --tidy "clang-tidy-$clang" -- "${folders[@]}"
}

stage_asan() {
  configure asan
  build asan tributary_unit_tests
  run_ctest asan -L '^unit$'
}

stage_tsan() {
  configure tsan
  build tsan "${threaded[@]}"
  run_ctest tsan -L "^($(IFS='|' && echo "${threaded[*]}"))\$"
}

stage_fuzz() {
  local seconds=5 seed=1
  [[ $long == no ]] || seconds=60 seed=0
  configure asan -DTRIBUTARY_FUZZ_SECONDS="$seconds" -DTRIBUTARY_FUZZ_SEED="$seed"
  build asan tributary_fuzz_targets
  run_ctest asan -L '^fuzz$'
}

stage_gpu_pack() { .ci/gpu_pack.sh; }
stage_cuda12() { .ci/cuda_versions.sh; }
stage_debian13() { .ci/empty_root.sh trixie "$results/debian13.xml"; }
stage_debian12() { .ci/empty_root.sh bookworm "$results/debian12.xml"; }

quick=no long=no only=() inner=
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --long) long=yes ;;
    --only) only+=("${2-}"); shift ;;
    --inner) inner=${2-}; shift ;;  # one stage, in the process that the outer call bounds
    -h | --help) usage; exit 0 ;;
    *) echo "test: unknown argument $1" >&2; usage >&2; exit 2 ;;
  esac
  shift || { echo "test: an argument lacks its value" >&2; exit 2; }
done

not_long=(-m "not long")
[[ $long == no ]] || not_long=()
results=build/results
if [[ -n $inner ]]; then
  stage_name=$inner
  "stage_$inner"
  exit
fi

known=" " usual=" "
declare -A limits_s
for stage in "${stages[@]}"; do
  IFS='|' read -r name limit_s _ <<<"$stage"
  limits_s[$name]=$limit_s
  known+="$name "
  [[ $apart == *" $name "* ]] || usual+="$name "
done
for name in ${only[@]+"${only[@]}"}; do
  [[ -n $name && $known == *" $name "* ]] || {
    echo "test: no stage \"$name\"; there are:$known" >&2
    exit 2
  }
done
[[ $long == no ]] || limits_s[fuzz]=$((limits_s[fuzz] + 600)) limits_s[ctest]=7200 limits_s[python]=2400 \
  limits_s[vllm]=$((limits_s[vllm] + 2400))
[[ $quick == no ]] || only+=(release ctest)
((${#only[@]})) && selected=" ${only[*]} " || selected=$usual

deploy/setup.sh build run python test
ulimit -c 0
rm -rf "$results"
mkdir -p "$results"
trap 'kill $(jobs -p) 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM
option=()
[[ $long == no ]] || option+=(--long)
[[ $quick == no ]] || option+=(--quick)

# start_stage NAME [COMMAND...]: in the background, under its limit; its process is in $started_stage.
start_stage() {
  local name=$1 limit_s=${limits_s[$1]}
  shift
  TRIBUTARY_STAGE=$$.$name timeout -k 20 "$limit_s" "$@" \
    bash deploy/test.sh ${option[@]+"${option[@]}"} --inner "$name" </dev/null &
  started_stage=$!
}

# end_stage NAME: what it started and left, in whatever session, as its limit does.
end_stage() {
  local left
  mapfile -t left < <(grep -lszxF "TRIBUTARY_STAGE=$$.$1" /proc/[0-9]*/environ | cut -d/ -f3)
  ((${#left[@]} == 0)) || kill -KILL "${left[@]}" 2>/dev/null || :
}

passed=0 failed=0 lines=() tidy=
for stage in "${stages[@]}"; do
  IFS='|' read -r name _ what <<<"$stage"
  [[ $selected == *" $name "* ]] || continue
  printf '\n== %s: %s\n' "$name" "$what"
  started=$SECONDS status=0 cases=() verdict=passed note=
  # The tests leave almost half of the processors' time unused, waiting for processes that start, end
  # or are silent. At idle priority clang-tidy takes hardly more than that.
  if [[ $name == ctest && $selected == *" tidy "* ]]; then
    start_stage tidy chrt --idle 0 >"$results/tidy.log" 2>&1
    tidy=$started_stage
  fi
  if [[ $name == tidy && -n $tidy ]]; then
    wait "$tidy" || status=$?
    note=" more than the stages beside it"
    cat "$results/tidy.log"
  else
    start_stage "$name"
    wait "$started_stage" || status=$?
  fi
  end_stage "$name"
  if ((status == 0)); then
    passed=$((passed + 1))
  elif ((status == left_out)); then
    verdict="left out"
  else
    failed=$((failed + 1)) verdict=FAILED
    ((status != 124 && status != 137)) || note+=", ended after its limit of ${limits_s[$name]} s"
  fi
  report=$results/$name.xml
  if [[ -f $report ]]; then
    mapfile -t cases < <(.ci/cases.py "$report" "build/$name/cases")
    read -r good bad skipped <<<"${cases[0]}"
    passed=$((passed + good)) failed=$((failed + bad))
    note+=", $good cases passed, $bad failed, $skipped skipped"
  fi
  lines+=("$(printf '%-8s %s in %d s%s' "$name" "$verdict" $((SECONDS - started)) "$note")")
  for case in "${cases[@]:1}"; do lines+=("  $case"); done
done

printf '\n== summary\n'
printf '%s\n' "${lines[@]}"
echo "$passed passed, $failed failed"
((failed == 0))
