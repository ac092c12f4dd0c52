#!/usr/bin/env bash
# Tests the pack of bench/gpu_check.sh for a GPU machine on systems that have none of our packages,
# one older and one newer than Debian 12: .ci/gpu_pack.sh [PACKED], as root. Packs (or takes the
# folder PACKED), then runs it on the emulated device in a bare Debian 11 and a bare Debian 13, as it
# is and with faults planted. Their base systems are kept in
# ${TRIBUTARY_CACHE_DIR:-~/.cache/tributary}.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suites=(bullseye trixie)
# The emulated device is slow, and slower beside other work.
budget_s=1500

# shellcheck source=.ci/debian_root.sh
source .ci/debian_root.sh

((EUID == 0)) || die "needs root, to mount and to change roots"
packed=${1:-build/gpu_packed}
if [[ ${2-} != inside ]]; then
  deploy/setup.sh rootfs
  (($# > 0)) || bench/gpu_check.sh --pack "$packed"
  # Whatever ends this, its mounts and its processes go with it.
  exec unshare --mount --propagation private --pid --fork --kill-child \
    .ci/gpu_pack.sh "$packed" inside
fi
trap 'exit 143' TERM  # the first process of a namespace has no default for it

# check STATUS OPTION...: runs what was packed in the root, expects that exit status; $out is what it
# said.
check() {
  local wanted=$1 status=0
  shift
  out=$(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ${plant:+TRIBUTARY_PLANT="$plant"} chroot "$root" \
    /packed/gpu_check.sh --from /packed --emulated --results /results "$@" 2>&1) || status=$?
  ((status == wanted)) || { echo "$out"; die "$suite: exit status $status, expected $wanted"; }
}
# said WORDS: as a regular expression of grep.
said() { grep -qE -- "$1" <<<"$out" || { echo "$out"; die "$suite: nothing says: $1"; }; }

for suite in "${suites[@]}"; do
  debian_root "$suite" "$suite.gpu" bare
  mount_root
  cp -r "$packed" "$root/packed"
  glibc=$(chroot "$root" getconf GNU_LIBC_VERSION)
  printf '== %s, %s, programs that need up to GLIBC_%s\n' "$suite" "$glibc" "$(<"$packed/GLIBC")"

  plant=
  check 0 --budget "$budget_s"
  echo "$out"
  said '^all passed'
  if said_left_out=$(grep '^left-out' <<<"$out"); then die "$suite: $said_left_out"; fi

  plant=wrong
  check 1 --only light.few1 --only light.merge
  said '^FAILED +light\.few1 .*cases wrong'
  said '^passed +light\.merge'
  plant=hang
  check 1 --only light.few1 --budget 10
  said '^TIMED-OUT light\.few1 .*its limit is'
  plant=crash
  check 1 --only light.few1
  said '^CRASHED +light\.few1 .*by SIGABRT'
  plant=
  # A library that was packed, since this system has none.
  library=$(basename "$(find "$root/packed/lib" -maxdepth 1 -name 'libhwy*' | head -n 1)")
  rm "$root/packed/lib/$library"
  check 1 --only program.info
  said "^FAILED +program\.info .*could not start: .*${library//./\\.}"
  echo "$suite: a wrong kernel, a hang, a crash and the missing $library were each called that"
done
echo "all passed"
