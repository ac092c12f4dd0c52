#!/usr/bin/env bash
# Installs what is missing of packages.txt: deploy/setup.sh [SECTION...] (default: build run).
# With --missing before the sections it prints those names, and installs nothing.
# Says and does nothing when nothing is missing; never upgrades a package on its own account.
# TRIBUTARY_ANY_SYSTEM=1 tries the list's first names on a system that it was not written for.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
list="$here/packages.txt"
lock_wait_s=180     # how long another apt or dpkg may hold its lock
apt_limit_s=900     # one apt-get call, downloads included

die() { echo "setup: $*" >&2; exit 1; }

# Prints the system's names of the packages in the sections given, in the order of the list.
packages_of() {
  awk -v wanted=" $* " -v system_="$system:" '
    { sub(/#.*/, "") }
    $1 ~ /^\[.*\]$/ { section = substr($1, 2, length($1) - 2); seen = seen " " section " "; next }
    section != "" && index(wanted, " " section " ") {
      name = ""
      for (i = 1; i <= NF; i++) {
        if (index($i, system_) == 1) { name = substr($i, length(system_) + 1); break }
        if (!index($i, ":")) name = $i
      }
      if (name != "") print name
    }
    END {
      n = split(wanted, names, " ")
      for (i = 1; i <= n; i++) if (!index(seen, " " names[i] " ")) {
        print "setup: no section [" names[i] "] in packages.txt; it has:" seen > "/dev/stderr"
        exit 2
      }
    }' "$list"
}

# Prints those of the packages given that are not installed.
missing_of() {
  dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    awk -v wanted="$*" '
      $1 == "installed" { have[$2] = 1 }
      END { n = split(wanted, names, " ")
            for (i = 1; i <= n; i++) if (!(names[i] in have)) print names[i] }'
}

# Runs apt-get; waits a bounded time while another process holds a lock of apt or dpkg.
apt() {
  local deadline=$((SECONDS + lock_wait_s)) status log
  log=$(mktemp)
  while :; do
    status=0
    ${sudo[@]+"${sudo[@]}"} env DEBIAN_FRONTEND=noninteractive LC_ALL=C \
      timeout "$apt_limit_s" apt-get -q -o DPkg::Lock::Timeout="$lock_wait_s" \
      -o Acquire::Retries=3 "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status == 0)); then
      rm -f "$log"
      return 0
    fi
    if ((SECONDS < deadline)) && grep -qE 'Could not get lock|Unable to (lock|acquire)' "$log"; then
      sleep 3
      continue
    fi
    tail -n 25 "$log" >&2
    rm -f "$log"
    return "$status"
  done
}

# True when apt knows a version of every package given.
all_have_candidate() {
  local known
  known=$(LC_ALL=C apt-cache policy "$@" 2>/dev/null | grep -c '^  Candidate: [^(]' || true)
  ((known == $#))
}

((BASH_VERSINFO[0] >= 4)) || die "needs bash 4 or newer"
[[ -r $list ]] || die "$list is missing"
only_print=no
[[ ${1-} != --missing ]] || { only_print=yes; shift; }
[[ $# -gt 0 ]] || set -- build run
os_release=${TRIBUTARY_OS_RELEASE:-/etc/os-release}  # tests have their own
# shellcheck source=/dev/null
system=$(. "$os_release" 2>/dev/null && echo "${ID-}${VERSION_ID-}") || true
supported=$(sed -n 's/^systems: *\([^#]*[^# ]\).*/\1/p' "$list")
[[ " $supported " == *" $system "* || -n ${TRIBUTARY_ANY_SYSTEM-} ]] ||
  die "this system is ${system:-unknown}, supported are ${supported// /, };" \
    "TRIBUTARY_ANY_SYSTEM=1 goes on at your own risk"
names=$(packages_of "$@")
mapfile -t wanted <<<"$names"
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: no apt here; what follows needs the equivalents of: ${wanted[*]}" >&2
  exit 0
fi
mapfile -t missing < <(missing_of "${wanted[@]}" || true)
((${#missing[@]})) || exit 0
[[ $only_print == no ]] || { printf '%s\n' "${missing[@]}"; exit 0; }

sudo=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null || { ! sudo -n true 2>/dev/null && [[ ! -t 0 ]]; }; then
    die "packages are missing and this user may not install them; as root, run:
  apt-get update && apt-get install --no-install-recommends ${missing[*]}"
  fi
  sudo=(sudo)
fi

echo "setup: installing ${missing[*]}"
install=(install -y --no-install-recommends --no-upgrade --no-remove "${missing[@]}")
if all_have_candidate "${missing[@]}"; then
  apt "${install[@]}" && exit 0
  echo "setup: refreshing the package lists and trying once more"
fi
apt update || die "apt-get update failed (see above)"
apt "${install[@]}" || die "apt-get could not install: ${missing[*]}"
