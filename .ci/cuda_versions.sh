#!/usr/bin/env bash
# The CUDA sources with the oldest tools of CUDA 12 that Debian and PyPI have: .ci/cuda_versions.sh.
# Needs no GPU and no toolkit. Every .cu file is compiled by Debian 13's nvcc (the oldest that is to be
# had; PyPI's packages of CUDA 12 have none), its PTX is assembled by PyPI's oldest ptxas, and the
# host's sources are compiled with PyPI's oldest headers. What was fetched, about 600 MB, is kept
# in ${TRIBUTARY_CACHE_DIR:-~/.cache/tributary}/cuda.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Debian 13's, and the headers that go with it.
nvcc_version=12.4.131~12.4.1-2
nvcc_headers=(cuda-nvcc==12.4.131 cuda-runtime==12.4.127 cuda-cccl==12.4.127.post1)
# PyPI's oldest; wgmma and bulk tensor copies came with CUDA 12.0.
oldest_ptx=8.0
oldest=(cuda-nvcc==12.0.76 cuda-runtime==12.0.107 cuda-cccl==12.0.90)
oldest_cublas=12.0.1.189

# shellcheck source=.ci/common.sh
source .ci/common.sh
cache=$cache/cuda
mkdir -p "$cache/wheels" "$cache/apt/lists/partial" "$cache/apt/archives/partial"

# wheel NAME==VERSION TO [PATTERN]: unpacks nvidia-NAME-cu12 into TO.
wheel() {
  local name=${1%%==*} version=${1##*==} file
  file=$(compgen -G "$cache/wheels/nvidia_${name//-/_}_cu12-$version-*.whl" | head -n 1) || true
  if [[ -z $file ]]; then
    python3 -m pip download -q --disable-pip-version-check --no-deps -d "$cache/wheels" \
      "nvidia-$name-cu12==$version" || die "nvidia-$name-cu12 $version is not to be had from PyPI"
    file=$(compgen -G "$cache/wheels/nvidia_${name//-/_}_cu12-$version-*.whl" | head -n 1)
  fi
  python3 - "$file" "$2" "${3-}" <<'PYTHON'
import sys
import zipfile
wheel = zipfile.ZipFile(sys.argv[1])
wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if sys.argv[3] in n])
PYTHON
}

# headers FOLDER WHEEL...: one include folder, as a toolkit has it.
headers() {
  local folder=$1 each
  shift
  for each in "$@"; do wheel "$each" "$folder/wheels"; done
  mkdir -p "$folder/include"
  cp -r "$folder"/wheels/nvidia/*/include/. "$folder/include/"
}

# Debian 13's compiler, from where this machine has its own packages; nothing is installed.
fetch_nvcc() {
  local folder=$1 mirror options deb
  mirror=$(debian_mirror) || exit
  # apt writes the version's colon as %3a.
  deb="$cache/apt/archives/nvidia-cuda-toolkit_${nvcc_version/:/%3a}_amd64.deb"
  if [[ ! -f $deb ]]; then
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie non-free" \
      >"$cache/apt/trixie.list"
    options=(-qq -o "Dir::State::lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt"
      -o "Dir::Etc::sourcelist=$cache/apt/trixie.list" -o Dir::Etc::sourceparts=/dev/null
      -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update
    (cd "$cache/apt/archives" &&
      apt-get "${options[@]}" download "nvidia-cuda-toolkit=$nvcc_version") ||
      die "nvidia-cuda-toolkit $nvcc_version is not to be had from Debian 13's non-free"
  fi
  mkdir -p "$folder"
  dpkg -x "$deb" "$folder/debian"
  local lib=$folder/debian/usr/lib/nvidia-cuda-toolkit
  mkdir -p "$folder"/{bin,nvvm/bin,nvvm/libdevice}
  cp -r "$lib"/bin/{nvcc,crt} "$folder"/debian/usr/bin/{ptxas,fatbinary,cudafe++,nvlink} "$folder/bin/"
  cp "$lib/bin/cicc" "$folder/nvvm/bin/"
  cp "$lib"/libdevice/* "$folder/nvvm/libdevice/"
  # Debian's own profile has its places in /usr.
  cat >"$folder/bin/nvcc.profile" <<'PROFILE'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
PROFILE
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# attempt WORDS COMMAND...: one line, and what the command said where it failed.
attempt() {
  local words=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    printf 'passed  %s\n' "$words"
  else
    failed=$((failed + 1))
    printf 'FAILED  %s\n' "$words"
    head -n 40 "$work/log"
  fi
}

toolkit=$work/12.4
fetch_nvcc "$toolkit"
headers "$toolkit" "${nvcc_headers[@]}"
headers "$work/12.0" "${oldest[@]}"
wheel "cublas==$oldest_cublas" "$work/12.0/cublas" /include/
cp -r "$work/12.0/cublas/nvidia/cublas/include/." "$work/12.0/include/"
ptxas=$work/12.0/wheels/nvidia/cuda_nvcc/bin/ptxas
chmod +x "$ptxas"
"$toolkit/bin/nvcc" --version | sed -n 's/.*release \([^,]*\), V\(.*\)/nvcc \2/p'
"$ptxas" --version | sed -n 's/.*release \([^,]*\), V\(.*\)/ptxas \2/p'

flags=(-std=c++20 -O3 -DNDEBUG --expt-relaxed-constexpr -I.)
while IFS= read -r file; do
  architectures=(80 90a)
  # For Hopper alone.
  [[ $file != */sm90/* && $file != */first_light.cu ]] || architectures=(90a)
  for each in "${architectures[@]}"; do
    attempt "nvcc, sm_$each, $file" "$toolkit/bin/nvcc" "${flags[@]}" -Werror=all-warnings \
      -Xcompiler=-Wall,-Wextra,-Werror "-gencode=arch=compute_$each,code=[sm_$each,compute_$each]" \
      --keep --keep-dir "$work" -c "$file" -o "$work/object.o"
    ptx=$(find "$work" -maxdepth 1 -name "*.ptx" | head -n 1)
    [[ -n $ptx ]] || continue
    # The same program, said to be of the older PTX: what that does not have is an error.
    sed "s/^\.version .*/.version $oldest_ptx/" "$ptx" >"$work/older"
    attempt "ptxas, sm_$each, $file" "$ptxas" -v "-arch=sm_$each" "$work/older" -o "$work/cubin"
    grep -E '(^| )[1-9][0-9]* bytes spill|C75[0-9][0-9]|serialized' "$work/log" | sort | uniq -c || true
    rm -f "$work"/*.ptx
  done
done < <(find kernels/cuda tests/gpu -name '*.cu' | sort)
while IFS= read -r file; do
  attempt "headers, $file" "${CXX:-g++}" -std=c++20 -fsyntax-only -Wall -Wextra -Werror \
    -DTRIBUTARY_HAS_CUDA=1 -DTRIBUTARY_CUDA_LIBRARIES='""' -DTRIBUTARY_REPO_ROOT='""' \
    -isystem "$work/12.0/include" -I. "$file"
done < <(find kernels/cuda tests/kernels/cuda/runtime tests/gpu -name '*.cc' | sort)

((failed == 0)) || die "$failed failed"
echo "all passed"
