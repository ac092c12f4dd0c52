#!/usr/bin/env bash
# The main job on one machine: deploy/quickstart.sh [--workers N] [--cpu] [--keep]. Installs what is
# missing, builds the program, verifies a pool of CPU workers against golden vectors, then runs the
# service: prompts pushed over the data plane, decode, a replay, metrics. --cpu builds without CUDA
# where there is nvcc; --keep leaves the last service running.
set -euo pipefail

workers=4
cpu=false
keep=false
while (($#)); do
  case $1 in
    --workers) workers=${2-}; shift ;;
    --cpu) cpu=true ;;
    --keep) keep=true ;;
    -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "quickstart: unknown argument $1; there are --workers N, --cpu and --keep" >&2; exit 2 ;;
  esac
  shift
done
[[ $workers =~ ^[1-9][0-9]{0,3}$ ]] || {
  echo "quickstart: --workers $workers: must be 1 to 9999" >&2
  exit 2
}
# shellcheck source=deploy/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

title() { printf '\n== %s\n' "$*"; }
# run LIMIT_S COMMAND...: shows the command, and ends it when it takes too long.
run() {
  local limit_s=$1
  shift
  printf '$ %s\n' "$*"
  timeout --foreground -k 10 "$limit_s" "$@"
}

# A service in the background: start_service OPTION..., then its URL is in $url; stop_service.
log=build/quickstart-service.log
service=
url=
start_service() {
  : >"$log"
  printf '$ %s &\n' "$program up --workers $workers --listen 127.0.0.1:0 $*"
  "$program" up --workers "$workers" --listen 127.0.0.1:0 "$@" >"$log" 2>&1 &
  service=$!
  for ((i = 0; i < 900; i++)); do  # `up` gives up by itself within a minute
    grep -q '^ready with ' "$log" && break
    kill -0 "$service" 2>/dev/null || { cat "$log" >&2; exit 1; }
    sleep 0.1
  done
  url=$(sed -n 's/^service *//p' "$log")
  [[ -n $url ]] || { cat "$log" >&2; exit 1; }
  grep -E '^(service|status page|ready)' "$log"
}
stop_service() {
  kill -TERM "$service"
  wait "$service"
  service=
}
trap '[[ -z $service ]] || kill -TERM "$service" 2>/dev/null || true' EXIT
# scrape PATTERN: the samples of the control plane's metrics that match.
scrape() {
  local address=${url#http://}
  exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
  printf 'GET /metrics HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$address" >&3
  grep -E "$1" <&3
  exec 3>&-
}
# digest COMMAND...: runs it, shows what it says, keeps its digest in $digest.
digest() {
  local report
  report=$(run 300 "$@")
  printf '%s\n' "$report"
  digest=$(sed -n 's/^digest *//p' <<<"$report")
}

deploy/setup.sh build run
title "build"
if $cpu; then
  build_program -DTRIBUTARY_CUDA=OFF
else
  build_program
fi
program=build/release/deploy/tributary

golden=tests/data/tiny.safetensors

title "a pool alone: $workers workers against the vectors of the reference implementation"
run 120 deploy/mpirun.sh -np "$workers" "$program" verify "$golden"

title "the service: prompts come from a prefill tier over the data plane, steps from a client"
start_service --model "$golden" --rows f32 --query f32 --leaf-tokens 64 --kv-gib 0.05
run 60 "$program" prefill --service "$url" "$golden"
run 120 "$program" verify --service "$url" "$golden"
stop_service

title "a workload through the service, and on a pool alone: the same bits"
workload=(--requests 24 --length-scale 0.1)
start_service --shape deepseek-v2-lite --kv-gib 0.25
digest "$program" replay --service "$url" "${workload[@]}"
through_service=$digest
digest deploy/mpirun.sh -np "$workers" "$program" replay "${workload[@]}" --kv-gib 0.25
if [[ $digest != "$through_service" ]]; then
  echo "quickstart: the digests differ: $through_service through the service, $digest alone" >&2
  exit 1
fi
printf '\n$ curl %s/metrics\n' "$url"
scrape '^tributary_(tokens_total|admissions_total\{result="admitted"|pages_used|canar|balance)'

title "done"
if $keep; then
  echo "The service runs on. Its status page: $url/ (end it with: kill $service)"
  service=
else
  stop_service
  echo "With --keep the service stays, and its status page with it."
fi
echo "Next: $program --help, or README.md."
