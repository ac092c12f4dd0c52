#!/usr/bin/env bash
# The Python package where nothing of ours is installed: .ci/wheel_root.sh SUITE, as root. Builds the
# wheel for this Debian's Python (on this machine if that is what it runs, else of HEAD, in a root),
# and uses it in a root that holds that Python and nothing else beyond the base system: as a client
# of a tier on other hosts, and as a pool in its own process. $TRIBUTARY_PROGRAM is the tier's
# program. Roots are new ones each time; what they are copied from, packages and compiled objects
# are kept in ${TRIBUTARY_CACHE_DIR:-~/.cache/tributary}.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=.ci/debian_root.sh
source .ci/debian_root.sh

suite=${1:?the name of a Debian release}
: "${TRIBUTARY_PROGRAM:?the program that runs the tier}"
((EUID == 0)) || die "needs root, to mount and to change roots"
if [[ ${2-} != inside ]]; then
  deploy/setup.sh rootfs
  # Whatever ends this, its mounts and its processes go with it.
  exec unshare --mount --propagation private --pid --mount-proc --fork --kill-child \
    .ci/wheel_root.sh "$suite" inside
fi
trap 'exit 143' TERM  # the first process of a namespace has no default for it
started=$SECONDS

# said WHAT: with the time so far.
said() { printf 'wheel: %s: %s, after %d s\n' "$suite" "$1" $((SECONDS - started)); }

# inside COMMAND...: in $root, with programs of its own alone.
inside() { env -i "${environment[@]}" chroot "$root" "$@" </dev/null; }

# reach_package_index: as this machine's pip does.
reach_package_index() {
  local variable authority=/etc/ssl/certs/ca-certificates.crt
  [[ ! -f $authority ]] || cp -L "$authority" "$root$authority"
  for variable in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT; do
    [[ -z ${!variable-} ]] || environment+=("$variable=${!variable}")
  done
  environment+=(PIP_CERT="$authority" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore)
}

# packages NAME...: of Debian.
packages() {
  inside apt-get -q -o Acquire::Retries=3 update >"$cache/$suite.apt.log" 2>&1 &&
    inside env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 \
      --no-install-recommends install "$@" >>"$cache/$suite.apt.log" 2>&1 ||
    { tail -n 20 "$cache/$suite.apt.log" >&2; die "$suite: apt-get could not install $*"; }
}

# build_in_root: in a system of its own; the wheel's path is left in $wheel.
build_in_root() {
  debian_root "$suite" "$suite.builder"
  mount_root
  reach_package_index
  git clone -q --no-local . "$root/root/tributary"
  packages ccache
  mkdir -p "$cache/$suite.ccache" "$root/root/.cache/ccache"
  mount --bind "$cache/$suite.ccache" "$root/root/.cache/ccache"
  inside /root/tributary/deploy/setup.sh build python
  said "the builder has its packages"
  wheel=$root$(inside env TRIBUTARY_WERROR=ON CMAKE_CXX_COMPILER_LAUNCHER=ccache \
    CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" \
    /root/tributary/deploy/python/wheel.sh)
}

# shellcheck source=/dev/null
if [[ $(. /etc/os-release && echo "${VERSION_CODENAME-}") == "$suite" ]]; then
  wheel=$(deploy/python/wheel.sh)
else
  build_in_root
fi
said "$(basename "$wheel") is built"
# The builder's root is another run's as soon as this one holds the user's.
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
cp "$wheel" "$kept/"

debian_root "$suite" "$suite.user"
mount_root
reach_package_index
cp "$kept"/*.whl "$root/root/"
packages python3 python3-venv
# A package of ours, or one that ours needs, would hide what the wheel lacks.
installed=$(inside dpkg-query -W -f '${Package}\n')
if foreign=$(grep -E '^(lib(fmt|hwy|isal|ucx|boost|ssl-dev|openmpi|prometheus)|tributary)' \
  <<<"$installed"); then
  die "$suite: the empty root holds $foreign"
fi
inside python3 -m venv /root/environment
inside /root/environment/bin/pip install -q "/root/$(basename "$wheel")" ||
  die "NOT TESTED: what the wheel needs is not to be had from the package index"
said "the wheel is installed"
mkdir -p "$root/root/tests"
mount --bind -o ro tests "$root/root/tests"
python3 .ci/wheel_hosts.py "$root"
said "done"
