# Empty Debian systems for the stages that need one; sourced, as root, within a mount namespace of
# the caller's own. They are kept in $cache.
# shellcheck shell=bash
# shellcheck source=.ci/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# debian_root SUITE NAME [bare]: $suite's root, $root, is a new copy of the base system, which is made
# where there is none. It holds ca-certificates and git, unless it is bare, and nothing else beyond;
# one run at a time has it.
debian_root() {
  # Packages of the base system are not upgraded later, and what depends on them has to fit.
  local max_age_days=7 base=$cache/$1${3+.$3} include=(--include=ca-certificates,git) mirror
  [[ ${3-} != bare ]] || include=()
  suite=$1 root=$cache/$2
  mkdir -p "$cache"
  exec 8>"$base.lock" 9>"$root.lock"
  flock -n 9 || die "$root is in use by another run"
  flock -w 600 8 || die "$base is being made by another run, for 10 minutes"
  [[ -z $(find "$base" -maxdepth 0 -mtime +"$max_age_days" 2>/dev/null) ]] || rm -rf "$base"
  if [[ ! -d $base ]]; then
    mirror=$(debian_mirror) || exit
    rm -rf "$base.new"
    debootstrap --variant=minbase ${include[@]+"${include[@]}"} "$suite" "$base.new" "$mirror" \
      >"$base.log" 2>&1 || { tail -n 20 "$base.log" >&2; die "debootstrap failed"; }
    touch "$base.new"
    mv "$base.new" "$base"
  fi
  rm -rf "$root"
  cp -a --reflink=auto "$base" "$root"
  exec 8>&-
}

# mount_root: what a running system has, and how this machine reaches others; $environment is what
# its programs get. The files of the packages that it installs are kept.
mount_root() {
  local variable
  mkdir -p "$cache/$suite.packages"
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys"
  mount --rbind /dev "$root/dev"
  mount --bind "$cache/$suite.packages" "$root/var/cache/apt/archives"
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump | sed -n '/^Acquire::\(https\?\|Check-\)/p' >"$root/etc/apt/apt.conf.d/90machine"
  environment=(HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin)
  for variable in http_proxy https_proxy no_proxy; do
    [[ -z ${!variable-} ]] || environment+=("$variable=${!variable}")
  done
}
