#!/usr/bin/env bash
# The peers of bench/cpu_limits: bench/peer_torch.sh [FOLDER]. Installs the newest PyTorch that PyPI
# has in a virtual environment (default build/peer; 0.6 GB are fetched, CUDA's libraries are not) and
# builds bench/brgemm_peer.cc against it. Prints the two flags of
# cpu_limits on one line. Status 0: both are there; 1: no PyTorch (no network, for example).
set -euo pipefail
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

folder=${1:-build/peer}
case $folder in
  -*) echo "usage: bench/peer_torch.sh [FOLDER]" >&2; exit 2 ;;
esac
folder=$(realpath -m "$folder")
python=$folder/bin/python
brgemm=$PWD/build/release/bench/brgemm_peer

install() {
  [[ -x $python ]] || python3 -m venv "$folder"
  local pip=("$folder/bin/pip" install --quiet --disable-pip-version-check)
  # Its own requirements, but for CUDA and Triton.
  "${pip[@]}" --no-deps torch
  "${pip[@]}" filelock typing-extensions sympy networkx jinja2 fsspec numpy
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

mkdir -p "$(dirname "$folder")"
if ! "$python" -c 'import torch' 2>/dev/null; then
  install >"$folder.log" 2>&1 || { echo "peer_torch: no PyTorch, see $folder.log" >&2; exit 1; }
fi
build_brgemm >>"$folder.log" 2>&1 || { echo "peer_torch: no brgemm, see $folder.log" >&2; exit 1; }
echo "--python $python --brgemm $brgemm"
