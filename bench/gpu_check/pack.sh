#!/usr/bin/env bash
# shellcheck disable=SC2154 # variables of gpu_check.sh and of each other
# Sourced by gpu_check.sh: builds what travels to a machine with a GPU. No MPI and no UCX, which load
# components at run time: pools are threads there.

most_mib=64
packed_programs=(first_light first_light_trace first_light_patient gpu_bench gpu_backend_test
  gpu_grid_test gpu_pool_test gpu_communicator_test tributary first_light_emulated)
build_folder=build/gpu_pack

# needed_by FILE...: the libraries that they name, of those that are ours to bring.
needed_by() {
  ldd "$@" 2>/dev/null | sed -nE 's/^[[:space:]]*(lib[^ ]*) => (\/[^ ]*) .*/\2/p' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so' || true
}

# highest_glibc FILE...: the newest version of a symbol of glibc that any of them asks for.
highest_glibc() {
  objdump -T "$@" 2>/dev/null | grep -oE 'GLIBC_[0-9]+(\.[0-9]+)+' | sort -uV | tail -n 1 |
    sed 's/GLIBC_//'
}

# name_missing ERRORS: the packages without which configuring fails, of those that the programs are
# built with; what CMake says where none is missing.
name_missing() {
  local missing
  mapfile -t missing < <(deploy/setup.sh --missing build test |
    grep -E -- '-dev$|^(g\+\+|cmake|ninja-build)$' | grep -vE 'openmpi|ucx')
  grep -q 'there is no nvcc' "$1" && missing+=("CUDA's nvcc, 12.4 or newer")
  if ((${#missing[@]} == 0)); then
    cat "$1"
  else
    local IFS=,
    echo "gpu_check: --pack needs what is missing here: ${missing[*]}"
  fi
}

pack() {
  local to=$1 name file built=()
  # shellcheck source=deploy/common.sh
  source "$here/../deploy/common.sh"
  mkdir -p build
  configure gpu_pack 2>"build/gpu_pack.errors" || { name_missing build/gpu_pack.errors >&2; return 1; }
  for name in "${packed_programs[@]}"; do
    # Where there was no NCCL, its test is not among the targets.
    ninja -C "$build_folder" -t query "$name" >/dev/null 2>&1 && built+=("$name")
  done
  build gpu_pack "${built[@]}"
  rm -rf "$to"
  mkdir -p "$to"/{bin,lib/glibc,gpu_check,tests/data}
  for name in "${built[@]}"; do
    file=$(find "$build_folder" -name "$name" -type f -perm -u+x | head -n 1)
    strip -o "$to/bin/$name" "$file"
  done
  while IFS= read -r file; do
    strip -o "$to/lib/$(basename "$file")" "$file"
  done < <(needed_by "$to"/bin/*)
  # For machines whose C library is older.
  for file in ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libdl.so.2 librt.so.1 libpthread.so.0; do
    cp -L "$(ldconfig -p | sed -nE "s/^[[:space:]]*${file//./\\.} .*x86-64.* => (.*)/\1/p" | head -n 1)" \
      "$to/lib/glibc/"
  done
  cp bench/gpu_check.sh "$to/"
  cp bench/gpu_check/*.sh bench/gpu_check/README.md "$to/gpu_check/"
  cp tests/data/tiny.safetensors "$to/tests/data/"
  # The first questions, to be compiled there by one line of nvcc if need be.
  while IFS= read -r file; do
    mkdir -p "$to/source/$(dirname "$file")"
    cp "$file" "$to/source/$file"
  done < <(first_light_sources)
  git rev-parse --short HEAD >"$to/COMMIT" 2>/dev/null || echo unknown >"$to/COMMIT"
  highest_glibc "$to"/bin/* "$to"/lib/*.so* >"$to/GLIBC"
  local kib
  kib=$(du -sk "$to" | cut -f 1)
  printf 'packed into %s: %d.%d MiB, %d programs, libraries beside them: %s\n' "$to" $((kib / 1024)) \
    $((kib % 1024 * 10 / 1024)) "${#built[@]}" "$(cd "$to/lib" && echo lib*.so*)"
  echo "highest symbol of glibc: GLIBC_$(<"$to/GLIBC")"
  ((kib <= most_mib * 1024)) ||
    { echo "gpu_check: that is more than the $most_mib MiB that travel" >&2; return 1; }
}

# first_light_sources: what first_light.cu includes of ours.
first_light_sources() {
  local todo=(tests/gpu/first_light.cu) done=() file included
  while ((${#todo[@]} > 0)); do
    file=${todo[0]}
    todo=("${todo[@]:1}")
    [[ " ${done[*]-} " == *" $file "* ]] && continue
    done+=("$file")
    while IFS= read -r included; do
      [[ -f $included ]] && todo+=("$included")
    done < <(sed -nE 's/^#include "([^"]+)".*/\1/p' "$file")
  done
  printf '%s\n' "${done[@]}"
}
