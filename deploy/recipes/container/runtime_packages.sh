#!/usr/bin/env bash
# Prints the packages whose shared libraries a program is linked with, one a line:
# deploy/recipes/container/runtime_packages.sh PROGRAM. So the image's contents follow from the build, and
# no second list of packages has to be kept.
set -euo pipefail

program=${1:?a program}
libraries=$(ldd "$program")
if grep 'not found' <<<"$libraries" >&2; then
  echo "runtime_packages.sh: $program lacks libraries" >&2
  exit 1
fi
mapfile -t paths < <(awk '$2 == "=>" && $3 ~ "^/" { print $3 }' <<<"$libraries")
# dpkg knows a library as /lib/..., the linker as /usr/lib/..., or the other way round. One search for
# all paths, since each search reads the whole list of files.
owners=$(dpkg-query --search "${paths[@]}" "${paths[@]#/usr}" "${paths[@]/#//usr}" 2>/dev/null || true)
for path in "${paths[@]}"; do
  # A library that no package owns came with the base image (CUDA's) or from a local build.
  grep --quiet --fixed-strings "/${path##*/}" <<<"$owners" ||
    echo "runtime_packages.sh: $path: of no package" >&2
done
cut -d: -f1 <<<"$owners" | sort -u
