#!/usr/bin/env bash
# shellcheck disable=SC2154 # variables of gpu_check.sh and of each other
# Sourced by gpu_check.sh: runs the checks of plan.sh, one process each under a time limit, and says
# of each how it ended. Nothing here assumes more than bash, coreutils, grep and sed.

# The time from asking a process to end until it is killed: a kernel that hangs holds it.
kill_after_s=5
# The exit status of a test program that finds no GPU.
skipped_itself=77

require_gpu() {
  if ! device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1) ||
    [[ -z $device ]]; then
    echo "gpu_check: no GPU here (nvidia-smi finds none): nothing was tested or measured"
    exit 3
  fi
}

say() { echo "$*" | tee -a "$results/results.txt"; }

# library_folders: where cuBLASLt and NCCL lie on this machine, separated by colons: a toolkit's or
# those of Python's nvidia packages. The places of the dynamic linker need no word.
library_folders() {
  local found=() file folder sites
  sites=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || true)
  for file in "${CUDA_HOME:-/usr/local/cuda}"/{lib64,targets/*/lib}/libcublasLt.so.[0-9]* \
    /usr/local/cuda-*/{lib64,targets/*/lib}/libcublasLt.so.[0-9]* \
    "${sites:-/none}"/nvidia/*/lib/lib{cublasLt,nccl}.so.[0-9]* \
    /usr/{local/lib,lib}/python3*/{site,dist}-packages/nvidia/*/lib/lib{cublasLt,nccl}.so.[0-9]* \
    /opt/*/lib/python3*/site-packages/nvidia/*/lib/lib{cublasLt,nccl}.so.[0-9]*; do
    [[ -e $file ]] || continue
    folder=$(dirname "$file")
    [[ " ${found[*]-} " == *" $folder "* ]] || found+=("$folder")
  done
  local IFS=:
  echo "${found[*]-}"
}

# choose_loader: the C library that was packed starts the programs where this machine's is older.
choose_loader() {
  loader=()
  local packed=$folder/lib/glibc/ld-linux-x86-64.so.2
  [[ -x $packed && -r $folder/GLIBC ]] || return 0
  local needed have
  needed=$(<"$folder/GLIBC")
  have=$(getconf GNU_LIBC_VERSION 2>/dev/null | sed 's/.* //')
  [[ -n $have && $(printf '%s\n%s\n' "$needed" "$have" | sort -V | head -n 1) == "$needed" ]] &&
    return 0
  loader=("$packed" --library-path "$folder/lib:$folder/lib/glibc${libraries:+:$libraries}")
  say "glibc here is ${have:-unknown}, the programs need $needed: they start with their own"
}

# ending STATUS SECONDS LIMIT LOG: one word, then how it ended, in one line.
ending() {
  local status=$1 seconds=$2 limit=$3 log=$4 last
  last=$(grep -v '^[[:space:]]*$' "$log" 2>/dev/null | tail -n 1 | cut -c 1-200 || true)
  case $status in
    0) echo "passed" ;;
    stuck) echo "STUCK its limit is $limit s, and it cannot be killed: the driver holds it" ;;
    "$skipped_itself")
      if [[ $emulated == yes ]]; then
        echo "FAILED skipped itself on an emulated GPU: $last"
      else
        echo "FAILED skipped itself on a machine with a GPU: $last"
      fi
      ;;
    124) echo "TIMED-OUT its limit is $limit s; last words: $last" ;;
    126 | 127)
      local missing
      missing=$(grep -m 1 -E 'error while loading shared libraries|No such file|not found|Permission denied' \
        "$log" || true)
      echo "FAILED could not start: ${missing:-$last}"
      ;;
    137)
      if ((seconds >= limit)); then
        echo "TIMED-OUT its limit is $limit s, and it had to be killed; last words: $last"
      else
        echo "KILLED by SIGKILL after $seconds s, before its limit: by the system, for memory?"
      fi
      ;;
    *)
      if ((status > 128 && status < 193)); then
        echo "CRASHED by SIG$(kill -l $((status - 128))); last words: $last"
      else
        echo "FAILED exit status $status: $last"
      fi
      ;;
  esac
}

# check NAME LIMIT_S COMMAND...: @NAME in a command is a program of DIR/bin.
check() {
  local name=$1 limit=$2 word command=() begin=$SECONDS status=0
  shift 2
  local log=$results/$name.log
  for word in "$@"; do
    if [[ $word == @* ]]; then
      command+=(${loader[@]+"${loader[@]}"} "$folder/bin/${word#@}")
    else
      command+=("$word")
    fi
  done
  # Whoever is held by the driver cannot be killed, and timeout would wait for it: we do not.
  local pid end=$((SECONDS + limit + 3 * kill_after_s))
  (
    cd "$folder" || exit
    [[ -z $libraries ]] || export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    exec timeout -k "$kill_after_s" "$limit" "${command[@]}"
  ) </dev/null >"$log" 2>&1 &
  pid=$!
  # The shell's own word on a process that a signal ended is not wanted: ending() says it.
  {
    while kill -0 "$pid" && ((SECONDS < end)); do sleep 0.1; done
    if kill -0 "$pid"; then status=stuck; else wait "$pid" || status=$?; fi
  } 2>/dev/null
  local seconds=$((SECONDS - begin)) words
  words=$(ending "$status" "$seconds" "$limit" "$log")
  say "$(printf '%-9s %-22s %4d s  %s' "${words%% *}" "$name" "$seconds" \
    "$([[ $words == *' '* ]] && echo "${words#* }")")"
  grep -E '^(goal|table) ' "$log" | tee -a "$results/figures.txt" || true
  [[ ${words%% *} == passed ]] || {
    failed+=("$name")
    grep -E '^symptom: ' "$log" | sort -u >>"$results/symptoms.txt" || true
  }
}

# wanted NAME: whether --only leaves it in.
wanted() {
  local prefix
  ((${#only[@]} == 0)) && return 0
  for prefix in "${only[@]}"; do [[ $1 == "$prefix"* ]] && return 0; done
  return 1
}

# run_all DIR: all checks of the plan, then figures, what failed, and what that points to.
run_all() {
  folder=$(cd "$1" && pwd)
  local line name limit need command left begin=$SECONDS
  results=${results:-$folder/results}
  mkdir -p "$results"
  results=$(cd "$results" && pwd)
  : >"$results/results.txt"
  rm -f "$results"/{figures,symptoms}.txt
  failed=()
  left_out=0
  libraries=
  if [[ $emulated == yes ]]; then
    device="Emulated device"
  else
    require_gpu
    libraries=$(library_folders)
  fi
  say "$device, $(date -u +%FT%TZ), $(nproc) cores, $(cat "$folder/COMMIT" 2>/dev/null || echo 'no commit known')"
  [[ $emulated == yes ]] || {
    nvidia-smi --query-gpu=driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader \
      2>/dev/null | tee -a "$results/results.txt" || true
    say "libraries found in: ${libraries:-nowhere but the places of the dynamic linker}"
  }
  choose_loader
  say ""
  local checks=()
  if [[ $emulated == yes ]]; then checks=("${emulated_plan[@]}"); else checks=("${gpu_plan[@]}"); fi
  for line in "${checks[@]}"; do
    IFS='|' read -r name limit need command <<<"$line"
    wanted "$name" || continue
    if [[ -n $need && $need != @* ]] && ! command -v "$need" >/dev/null; then
      say "$(printf '%-9s %-22s         there is no %s here' left-out "$name" "$need")"
      continue
    fi
    if [[ $need == @* && ! -x $folder/bin/${need#@} ]]; then
      say "$(printf '%-9s %-22s         %s was not built' left-out "$name" "${need#@}")"
      continue
    fi
    left=$((budget_s - (SECONDS - begin) - kill_after_s))
    if ((left < 3)); then
      say "$(printf '%-9s %-22s         the budget of %d s is used up' not-run "$name" "$budget_s")"
      left_out=$((left_out + 1))
      continue
    fi
    # shellcheck disable=SC2086 # words of a command; no name has spaces
    check "$name" "$((limit < left ? limit : left))" $command
  done
  report "$begin"
}

report() {
  local symptom
  say ""
  if [[ -s $results/figures.txt ]]; then
    say "Goals:"
    grep '^goal ' "$results/figures.txt" | sed 's/^goal /  /' | tee -a "$results/results.txt" || true
    say ""
  fi
  if [[ -s $results/symptoms.txt ]]; then
    say "Symptoms, and whom to suspect:"
    sort -u "$results/symptoms.txt" | sed 's/^symptom: //' | while IFS= read -r symptom; do
      say "  $symptom: $(suspect_of "$symptom")"
    done
    say ""
  fi
  if ((${#failed[@]} > 0)); then
    say "NOT all passed: ${failed[*]} (each has a .log in $results); $((SECONDS - $1)) s"
    exit 1
  fi
  if ((left_out > 0)); then
    say "all that ran passed; $left_out did not run, the budget was used up; $((SECONDS - $1)) s"
    exit 1
  fi
  say "all passed; $((SECONDS - $1)) s"
}
