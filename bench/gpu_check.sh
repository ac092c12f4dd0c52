#!/usr/bin/env bash
# Everything that needs a GPU, in one run of ten minutes that cannot come back empty: every check is
# a process under a time limit, and results are written as they come. bench/gpu_check/README.md.
# Also what --pack takes along: there is no repository around it then.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: gpu_check.sh [--pack DIR | --from DIR [--emulated]]
                    [--results DIR] [--budget SECONDS] [--only NAME]...
  (neither)         builds here (needs our packages and nvcc), then runs
  --pack DIR        builds here, no GPU needed, what runs there: at most 64 MiB, stripped
  --from DIR        runs what --pack made; needs a driver and a shell
  --emulated        with --from: on a device that is emulated, as far as that goes; needs a shell
  --results DIR     where results go (default: results beside DIR's programs)
  --budget SECONDS  of the whole run (default 570); what is left out is named
  --only NAME       the checks whose name begins with NAME; may be given several times
Status 0: all passed; 1: some failed; 2: wrong flags; 3: no GPU here, nothing was done.
TEXT
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mode=build
emulated=no
folder=
results=
budget_s=570
only=()
while (($# > 0)); do
  case $1 in
    --pack | --from | --results | --budget | --only)
      (($# > 1)) || { echo "gpu_check: $1 needs a value" >&2; exit 2; }
      case $1 in
        --results) results=$2 ;;
        --budget) budget_s=$2 ;;
        --only) only+=("$2") ;;
        *)
          mode=${1#--}
          folder=$2
          ;;
      esac
      shift 2
      ;;
    --emulated) emulated=yes; shift ;;
    --help) usage; exit 0 ;;
    *) echo "gpu_check: unknown argument: $1" >&2; usage >&2; exit 2 ;;
  esac
done
[[ $budget_s =~ ^[1-9][0-9]*$ ]] ||
  { echo "gpu_check: --budget is '$budget_s', expected seconds" >&2; exit 2; }
[[ $emulated == no || $mode == from ]] ||
  { echo "gpu_check: --emulated runs what --pack made: it needs --from DIR" >&2; exit 2; }

# shellcheck source=bench/gpu_check/run.sh
source "$here/gpu_check/run.sh"
# shellcheck source=bench/gpu_check/plan.sh
source "$here/gpu_check/plan.sh"

case $mode in
  pack)
    # shellcheck source=bench/gpu_check/pack.sh
    source "$here/gpu_check/pack.sh"
    pack "$folder"
    ;;
  from)
    [[ -d $folder/bin ]] || { echo "gpu_check: $folder has no bin: not what --pack made" >&2; exit 2; }
    run_all "$folder"
    ;;
  build)
    require_gpu
    # shellcheck source=bench/gpu_check/pack.sh
    source "$here/gpu_check/pack.sh"
    pack "$here/../build/gpu_check"
    run_all "$here/../build/gpu_check"
    ;;
esac
