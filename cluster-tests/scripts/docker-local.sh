#!/usr/bin/env bash
# Builds the image imprint:dev on a Debian machine that reaches Debian's packages but no image registry.
#
# Where there is a registry this script isn't needed: `docker compose build` does it all. Here the engine and compose come from
# the distribution, the base image is made with debootstrap under the name that the Dockerfile uses, and the binary is built on
# the machine itself. Each step is skipped when its result is there already.
#
# usage: docker-local.sh [--debug | --binary FILE | --from-source] [--engine-only]
#   --debug         use a debug build (quicker to build, slower to run)
#   --binary FILE   use this binary
#   --from-source   compile inside the image as the Dockerfile does, on a build image made from the machine's own toolchain
#   --engine-only   stop once the engine runs and the base image is there
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The base image and the machine have to be of one release, or the binary may want a newer libc than the image has.
RELEASE=bookworm
RUNTIME_IMAGE=debian:$RELEASE-slim
RUST_IMAGE=rust:1.95-$RELEASE
# The engine's own builder: it needs no plugin and finds the images that were made here.
export DOCKER_BUILDKIT=0

main() {
  local mode=release binary='' engine_only=false
  while (($#)); do
    case $1 in
      --debug) mode=debug ;;
      --binary) mode=given binary=${2:?--binary needs a file}; shift ;;
      --from-source) mode=source ;;
      --engine-only) engine_only=true ;;
      *) die "unknown argument $1" ;;
    esac
    shift
  done
  mkdir -p "$WORK"
  install_engine
  start_engine
  make_base_image
  $engine_only && return
  case $mode in
    source) build_from_source ;;
    given) build_around "$binary" ;;
    *) build_binary "$mode"; build_around "$TARGET/$mode/imprint" ;;
  esac
  docker run --rm "$IMAGE" version >&2 || die "the binary in $IMAGE does not start"
  say "built $IMAGE"
}

install_engine() {
  have dockerd || install_packages docker.io
  # Newer releases have the client in a package of its own.
  have docker || install_packages docker-cli
  docker compose version >/dev/null 2>&1 || have docker-compose || install_packages docker-compose
}

install_packages() {
  ((EUID == 0)) || die "needs root to install $*"
  say "installing $*"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"; } \
    >"$WORK/apt.log" 2>&1 </dev/null || { tail -n 20 "$WORK/apt.log" >&2; die "could not install $*"; }
}

start_engine() {
  docker info >/dev/null 2>&1 && return
  ((EUID == 0)) || die "the engine isn't running and only root can start it"
  say "starting dockerd, log in $WORK/dockerd.log"
  setsid nohup dockerd >"$WORK/dockerd.log" 2>&1 </dev/null &
  until_true 60 docker info || { tail -n 20 "$WORK/dockerd.log" >&2; die "dockerd did not come up"; }
}

# The mirror is whatever this machine's apt takes the release from.
make_base_image() {
  docker image inspect "$RUNTIME_IMAGE" >/dev/null 2>&1 && return
  have debootstrap || install_packages debootstrap
  local mirror root
  # shellcheck disable=SC2016 # apt's placeholders
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $RELEASE" 'Component: main' | head -n 1)
  [[ -n $mirror ]] || die "apt has no source for $RELEASE, which the image is made of"
  root=$(mktemp -d)
  say "making $RUNTIME_IMAGE"
  debootstrap --variant=minbase "$RELEASE" "$root" "$mirror" >"$WORK/debootstrap.log" 2>&1 \
    || { tail -n 20 "$WORK/debootstrap.log" >&2; rm -rf "$root"; die "debootstrap failed"; }
  rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
  tar -C "$root" -c . | docker import --change 'CMD ["bash"]' --change 'LABEL imprint.made-locally=true' - "$RUNTIME_IMAGE" >/dev/null
  rm -rf "$root"
}

build_image() {
  docker build "$@" >"$WORK/image.log" 2>&1 || { tail -n 40 "$WORK/image.log" >&2; die "docker build $* failed"; }
}

build_binary() {
  use_pinned_toolchain
  local flags=()
  [[ $1 == release ]] && flags+=(--release)
  (cd "$ROOT" && cargo build --locked -p imprint-node --bin imprint "${flags[@]}") || die "the build failed"
}

# The Dockerfile's runtime stage with one line more, in a context that holds nothing but the binary.
build_around() {
  local context
  [[ -f $1 ]] || die "no binary at $1"
  build_image --target runtime -t imprint-runtime:dev "$ROOT"
  context=$(mktemp -d)
  install -m 0755 "$1" "$context/imprint"
  printf 'FROM imprint-runtime:dev\nCOPY imprint /usr/local/bin/imprint\n' >"$context/Dockerfile"
  build_image -t "$IMAGE" "$context"
  rm -rf "$context"
}

build_from_source() {
  make_rust_image
  build_image -t "$IMAGE" "$ROOT"
}

# A build image like the public one: the base, a C compiler, and the toolchain that this machine has.
make_rust_image() {
  docker image inspect "$RUST_IMAGE" >/dev/null 2>&1 && return
  local context sysroot
  use_pinned_toolchain
  say "making $RUST_IMAGE"
  sysroot=$(cd "$ROOT" && rustc --print sysroot)
  context=$(mktemp -d)
  cp -a "$sysroot/." "$context/toolchain"
  rm -rf "$context/toolchain/share/doc"
  # What this machine trusts, so that the registry is reached from inside as it is from outside.
  cp /etc/ssl/certs/ca-certificates.crt "$context/"
  cat >"$context/Dockerfile" <<DOCKERFILE
FROM $RUNTIME_IMAGE
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev ca-certificates && rm -rf /var/lib/apt/lists/*
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY toolchain /usr/local
LABEL imprint.made-locally=true
DOCKERFILE
  build_image -t "$RUST_IMAGE" "$context"
  rm -rf "$context"
}

main "$@"
