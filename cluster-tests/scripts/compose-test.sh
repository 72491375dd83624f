#!/usr/bin/env bash
# Drives the three-node cluster of docker-compose.yml through the failures that containers make easy, and checks after each one
# that every node gives back exactly what was produced: from the machine through the mapped ports and from inside the network.
#
# What one file per step and one topic of one partition buy: the expected content is the files one after the other, so a lost,
# doubled, reordered or damaged message anywhere changes a checksum. Every `produce` has to succeed, and it is run once. The
# failure always comes before it, never in its midst, so that a batch which is sent again cannot have been stored already.
#
# usage: compose-test.sh [IMPRINT]     the image imprint:dev must be there; IMPRINT is the machine's own binary for the client side
# Prints a line with its time per check, and at the end "N passed, N failed". Exits 1 on the first failure, after printing what
# the nodes logged. Its project has its own name, so the containers and volumes of a cluster that you use are left alone; the
# ports are the same, though, so that cluster has to be stopped.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export COMPOSE_PROJECT_NAME=imprint-test
IMPRINT=${1:-$TARGET/release/imprint}
NODES=(1 2 3)
TOPIC=compose-test
LINES_PER_FILE=20000
# Generous: the bounds are there to end a stuck run on a loaded machine. The times that matter are printed.
READY_SECONDS=90
COMMAND_SECONDS=60

passed=0 failed=0 produced=0
work=''

main() {
  trap finish EXIT
  trap 'exit 130' INT TERM
  [[ -x $IMPRINT ]] || die "no binary at $IMPRINT"
  docker image inspect "$IMAGE" >/dev/null 2>&1 || die "no image $IMAGE; docker-local.sh or 'docker compose build' makes it"
  work=$(mktemp -d)
  : >"$work/expected"
  compose down -v --remove-orphans >/dev/null 2>&1

  check "three nodes come up" compose up -d
  check "three nodes are healthy" all_healthy
  check "each node answers on its http port" each_node http_ready
  check "a topic is created" run_on 1 topic create "$TOPIC" -p 1 -r 3
  check "produce with all nodes up" produce_without 0
  compare

  for n in "${NODES[@]}"; do
    check "node $n is killed" docker kill --signal KILL "$(container "$n")"
    check "produce without node $n" produce_without "$n"
    check "node $n is started again" docker start "$(container "$n")"
    check "three nodes are healthy" all_healthy
    compare
  done

  check "node 1 is paused" docker pause "$(container 1)"
  check "produce without node 1" produce_without 1
  check "node 1 goes on" docker unpause "$(container 1)"
  check "three nodes are healthy" all_healthy
  compare

  check "node 2 is cut off" cut_off 2
  check "produce without node 2" produce_without 2
  check "node 2 is connected again" reconnect 2
  check "three nodes are healthy" all_healthy
  compare

  for n in "${NODES[@]}"; do
    check "node $n stops cleanly" stops_cleanly "$n"
    check "produce without node $n" produce_without "$n"
    check "node $n is started again" docker start "$(container "$n")"
    check "three nodes are healthy" all_healthy
  done
  compare

  check "all nodes are killed at once" docker kill --signal KILL "$(container 1)" "$(container 2)" "$(container 3)"
  check "all nodes are started again" docker start "$(container 1)" "$(container 2)" "$(container 3)"
  check "three nodes are healthy" all_healthy
  compare
  check "replicas hold the same bytes" run_on 1 verify "$TOPIC"
  check "produce after all that" produce_without 0
  compare
}

# check LABEL COMMAND...: one line per check; the first failure ends the run.
check() {
  local label=$1 start
  shift
  start=$(now_ms)
  if "$@" >"$work/output" 2>&1; then
    passed=$((passed + 1))
    printf 'ok     %6d ms  %s\n' $(($(now_ms) - start)) "$label"
  else
    failed=$((failed + 1))
    printf 'FAILED %6d ms  %s\n' $(($(now_ms) - start)) "$label"
    sed 's/^/       | /' "$work/output" | tail -n 40
    exit 1
  fi
}

finish() {
  local code=$?
  trap - EXIT INT TERM
  if ((code != 0)) && [[ -n $work ]]; then
    say "--- containers"
    compose ps >&2 || true
    say "--- logs"
    compose logs --no-color --tail 80 >&2 || true
  fi
  if [[ -n $work ]]; then
    # A paused container can't be stopped.
    docker unpause "$(container 1)" >/dev/null 2>&1 || true
    compose down -v --remove-orphans >/dev/null 2>&1 || { say "could not remove the containers"; code=1; }
    rm -rf "$work"
  fi
  printf '%d passed, %d failed\n' "$passed" "$failed"
  exit "$code"
}

# docker-compose 1.29 writes imprint-test_imprint-1_1, version 2 imprint-test-imprint-1-1: so ask for the labels both of them set.
container() {
  docker ps -aq --no-trunc --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
    --filter "label=com.docker.compose.service=imprint-$1"
}

address() { echo "localhost:$((7450 + 10 * $1))"; }

addresses_without() {
  local n list=()
  for n in "${NODES[@]}"; do [[ $n == "$1" ]] || list+=("$(address "$n")"); done
  (IFS=,; echo "${list[*]}")
}

run() { timeout -k 5 "$COMMAND_SECONDS" "$IMPRINT" "$@" </dev/null; }

run_on() {
  local n=$1
  shift
  run --server "$(address "$n")" "$@"
}

each_node() {
  local n
  for n in "${NODES[@]}"; do "$1" "$n" || return 1; done
}

healthy() { [[ $(docker inspect -f '{{.State.Health.Status}}' "$(container "$1")") == healthy ]]; }

# A node that was just started keeps no "healthy" from before: the engine begins again at "starting".
all_healthy() { until_true "$READY_SECONDS" each_node healthy; }

http_ready() {
  local status
  exec 3<>"/dev/tcp/localhost/$((7452 + 10 * $1))" || return 1
  printf 'GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
  read -r status <&3
  exec 3<&- 3>&-
  echo "node $1: $status"
  [[ $status == *' 200 '* ]]
}

# Another file for the topic, through the nodes other than $1 (0: through all).
produce_without() {
  local file=$work/part
  produced=$((produced + 1))
  awk -v part="$produced" -v lines="$LINES_PER_FILE" \
    'BEGIN { for (i = 0; i < lines; i++) printf "part %d line %d %.0f\n", part, i, i * 2654435761 }' >"$file"
  run --server "$(addresses_without "$1")" produce "$TOPIC" --file "$file" || return 1
  cat "$file" >>"$work/expected"
}

checksum() { sha256sum | cut -d ' ' -f 1; }

consume_outside() { run_on "$1" consume "$TOPIC" --at "$1" --from start --exit-at-end --timeout 30s >"$work/got"; }

consume_inside() {
  timeout -k 5 "$COMMAND_SECONDS" docker exec "$(container $(($1 % 3 + 1)))" imprint --server "imprint-$1:7460" \
    consume "$TOPIC" --at "$1" --from start --exit-at-end --timeout 30s >"$work/got"
}

# One try: `--exit-at-end` ends where everything acknowledged was read, so a node that is catching up has to be waited for by the
# command, and must not pass for one that holds less.
same() {
  "$1" "$2" || return 1
  [[ $(checksum <"$work/got") == $(checksum <"$work/expected") ]] && return
  echo "node $2 serves $(wc -l <"$work/got") lines, expected $(wc -l <"$work/expected")"
  cmp "$work/got" "$work/expected"
  return 1
}

compare() {
  local n
  for n in "${NODES[@]}"; do
    check "node $n serves what was produced, from the machine" same consume_outside "$n"
    check "node $n serves what was produced, inside the network" same consume_inside "$n"
  done
}

network() { docker inspect -f '{{range $name, $_ := .NetworkSettings.Networks}}{{$name}}{{end}}' "$(container 1)"; }

cut_off() { docker network disconnect "$(network)" "$(container "$1")"; }

reconnect() { docker network connect --alias "imprint-$1" "$(network)" "$(container "$1")"; }

stops_cleanly() {
  docker stop --time 30 "$(container "$1")" >/dev/null || return 1
  local code
  code=$(docker inspect -f '{{.State.ExitCode}}' "$(container "$1")")
  echo "exit code $code"
  [[ $code == 0 ]]
}

main
