# Shared by the scripts here: the folders of their results, their end, Debian's archive. Sourced.
# shellcheck shell=bash
# shellcheck disable=SC2034  # of those who source this
cache=${TRIBUTARY_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tributary}

# Names the script that sources this.
die() { echo "$(basename "$0" .sh): $*" >&2; exit 1; }

# debian_mirror: prints the URL of the archive that this machine has its own packages from.
debian_mirror() {
  local mirror
  # shellcheck disable=SC2016  # apt's variables
  mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' |
    awk '$1 == "Debian" && !found++ { print $2 }')
  [[ -n $mirror ]] || die "apt knows no Debian archive here"
  echo "$mirror"
}
