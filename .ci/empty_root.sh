#!/usr/bin/env bash
# The quick start and the tests on an empty Debian: .ci/empty_root.sh SUITE REPORT, as root. Makes a root
# that holds ca-certificates and git and nothing else beyond the base system, clones HEAD into it,
# runs the quick start there, then the release tests; ctest's report goes to REPORT. The root is a
# new one each time; what it is copied from, and the files of packages, are kept in
# ${TRIBUTARY_CACHE_DIR:-~/.cache/tributary}. Afterwards it can be looked at there, until the next.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=.ci/debian_root.sh
source .ci/debian_root.sh

suite=${1:?the name of a Debian release} report=${2:?where the report goes}
((EUID == 0)) || die "needs root, to mount and to change roots"
if [[ ${3-} != inside ]]; then
  deploy/setup.sh rootfs
  # Whatever ends this, its mounts and its processes go with it.
  exec unshare --mount --propagation private --pid --fork --kill-child \
    .ci/empty_root.sh "$suite" "$report" inside
fi
trap 'exit 143' TERM  # the first process of a namespace has no default for it

debian_root "$suite" "$suite.root"
mount_root
mkdir -p "$root/root/shared" "$root/root/results"
mount --bind "$(dirname "$report")" "$root/root/results"
# The larger test data where this machine has it.
shared=${TRIBUTARY_SHARED_DIR:-../shared}
[[ ! -d $shared ]] || mount --bind -o ro "$shared" "$root/root/shared"
git clone -q --no-local . "$root/root/tributary"

# The rest runs in the root, with only the root's own programs.
timed() {
  local started=$SECONDS status=0
  "$@" || status=$?
  printf '\n== empty %s: %s took %d s, exit status %d\n' \
    "$suite" "$*" $((SECONDS - started)) "$status"
  return "$status"
}
commands() {
  set -euo pipefail
  local suite=$1 report=$2
  trap 'exit 143' TERM
  umount --lazy /mnt
  cd /root/tributary
  # Warnings are errors here too, so that the tests find the program built.
  TRIBUTARY_WERROR=ON timed deploy/quickstart.sh
  local status=0
  timed deploy/test.sh --quick || status=$?
  cp build/results/ctest.xml "/root/results/$report"
  exit "$status"
}
# Not chroot alone: whoever enters a mount namespace, as tests do, leaves a chroot behind.
cd "$root"
pivot_root . mnt
exec env -i "${environment[@]}" chroot . \
  bash -c "$(declare -f timed commands); commands \"\$@\"" bash "$suite" "$(basename "$report")"
