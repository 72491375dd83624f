# shellcheck shell=bash disable=SC2034
# What the scripts here share: places, talk on stderr, waiting by polling, and the containers' tools. Sourced, not run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
WORK=$TARGET/docker
IMAGE=imprint:dev

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

# until_true SECONDS COMMAND...: polls until the command succeeds; fails when the time is up.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || return 1
    sleep 0.2
  done
}

# Milliseconds since an arbitrary start.
now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# `docker compose` where the plugin is there, else docker-compose. Without input, so that `exec` never waits for a terminal.
compose() {
  if docker compose version >/dev/null 2>&1; then
    docker compose -f "$ROOT/docker-compose.yml" "$@" </dev/null
  else
    docker-compose -f "$ROOT/docker-compose.yml" "$@" </dev/null
  fi
}

# rust-toolchain.toml names an exact version. Where that very compiler is installed under another name (`stable`, say) and rustup
# may not or cannot fetch a second copy, use the one that is there; a different version is never taken silently.
use_pinned_toolchain() {
  local pinned installed name
  have rustup || return 0
  pinned=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$ROOT/rust-toolchain.toml" 2>/dev/null)
  [[ -n $pinned && -z ${RUSTUP_TOOLCHAIN:-} ]] || return 0
  installed=$(rustup toolchain list)
  [[ $'\n'$installed != *$'\n'"$pinned"-* ]] || return 0
  while read -r name _; do
    if [[ $(rustup run "$name" rustc --version 2>/dev/null) == "rustc $pinned "* ]]; then
      say "toolchain $pinned is installed as $name"
      export RUSTUP_TOOLCHAIN=$name
      return 0
    fi
  done <<<"$installed"
}
