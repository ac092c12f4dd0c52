#!/usr/bin/env bash
# Sourced: the base system of another Debian, which empty_root.sh and gpu_pack.sh copy their roots
# from. What was fetched stays in $cache; the caller has die().
# shellcheck disable=SC2034 # cache is the caller's too
cache=${TRIBUTARY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tributary}

# Packages of the base system are not upgraded later, and what depends on them has to fit.
max_age_days=7

# base_root SUITE FOLDER [PACKAGE,PACKAGE...]: the smallest Debian of that release, and PACKAGEs, in
# FOLDER, unless it is there and not too old.
base_root() {
  local suite=$1 base=$2 mirror
  [[ -z $(find "$base" -maxdepth 0 -mtime +"$max_age_days" 2>/dev/null) ]] || rm -rf "$base"
  [[ ! -d $base ]] || return 0
  # From where this machine has its own packages.
  # shellcheck disable=SC2016  # apt's variables
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' |
    awk '$1 == "Debian" && !found++ { print $2 }')
  [[ -n $mirror ]] || die "apt knows no Debian archive here"
  rm -rf "$base.new"
  debootstrap --variant=minbase ${3+"--include=$3"} "$suite" "$base.new" "$mirror" \
    >"$base.log" 2>&1 || { tail -n 20 "$base.log" >&2; die "debootstrap failed"; }
  touch "$base.new"
  mv "$base.new" "$base"
}
