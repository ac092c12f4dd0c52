#!/usr/bin/env bash
# Shared by quickstart.sh and test.sh; sourced, not run. Leaves the shell in the repository's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Every build tool and ctest read these; a caller's own values stay.
processors=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$processors}
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$processors}
# A fresh build folder uses ccache where it is installed.
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
fi

# configure PRESET [OPTION...]: silent unless it fails. Warnings are errors where TRIBUTARY_WERROR
# says ON: to those who look after the sources, not to those who use them with another compiler.
configure() {
  local preset=$1 log=build/$1.configure.log
  mkdir -p build
  if ! cmake --preset "$@" ${TRIBUTARY_WERROR+-DTRIBUTARY_WERROR="$TRIBUTARY_WERROR"} \
    >"$log" 2>&1; then
    cat "$log" >&2
    echo "configuring the preset $preset failed; its folder is build/$preset" >&2
    return 1
  fi
}

# build_program [OPTION...]: the program alone. A folder that test.sh configured keeps its tests.
build_program() {
  local without_tests=() cuda
  [[ -f build/release/build.ninja ]] ||
    without_tests=(-DTRIBUTARY_TESTS=OFF -DTRIBUTARY_BENCH=OFF)
  configure release ${without_tests[@]+"${without_tests[@]}"} "$@"
  cuda=$(sed -n 's/^-- CUDA: ON, //p' build/release.configure.log)
  [[ -z $cuda ]] || echo "compiles the CUDA backend as well, with $cuda"
  build release tributary
}

# build PRESET [TARGET...]: all targets when none is named.
build() {
  local preset=$1
  shift
  cmake --build --preset "$preset" ${1+--target "$@"}
}
