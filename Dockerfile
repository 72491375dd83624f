# Imprint's image, in three stages:
#
#   runtime   what the image is besides the binary: user, volume, ports, health check
#   build     compiles the binary
#   (last)    runtime + the binary of the build stage
#
# `docker build -t imprint:dev .` builds everything. A binary that was built elsewhere on a glibc that is no newer than
# bookworm's goes on top of `--target runtime` (cluster-tests/scripts/docker-local.sh does that), so both kinds of image share
# every line but one. Nothing here needs BuildKit, so runtime comes first: the classic builder runs every stage up to the target.

ARG RUST_IMAGE=rust:1.95-bookworm
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${RUNTIME_IMAGE} AS runtime
RUN groupadd --system --gid 7460 imprint \
 && useradd --system --uid 7460 --gid 7460 --home-dir /data --no-create-home --shell /usr/sbin/nologin imprint \
 && install -d -o imprint -g imprint -m 0750 /data
ENV IMPRINT_DATA_DIR=/data
USER imprint
WORKDIR /data
VOLUME /data
# gRPC for clients and admin, RPC between nodes, HTTP for metrics and health.
EXPOSE 7460 7461 7462
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 \
  CMD ["imprint", "cluster", "wait-ready", "--server", "127.0.0.1:7460", "--timeout", "3s"]
ENTRYPOINT ["imprint"]
CMD ["serve"]

FROM ${RUST_IMAGE} AS build
WORKDIR /src
# Dependencies first, over empty crates: this layer is rebuilt only when a manifest or the lock file changes.
COPY Cargo.toml Cargo.lock ./
COPY proto/Cargo.toml proto/
COPY raft/Cargo.toml raft/
COPY client/Cargo.toml client/
COPY node/Cargo.toml node/
COPY corpus/Cargo.toml corpus/
COPY cluster-tests/Cargo.toml cluster-tests/
RUN for crate in proto raft client node corpus cluster-tests; do mkdir -p "$crate/src" && : > "$crate/src/lib.rs"; done \
 && echo 'fn main() {}' | tee proto/build.rs > node/src/main.rs \
 && cargo build --release --locked -p imprint-node --bin imprint
COPY proto proto
COPY raft raft
COPY client client
COPY node node
# The empty crates may be newer than the sources that replaced them, and cargo goes by time.
RUN find proto raft client node -name '*.rs' -exec touch {} + \
 && cargo build --release --locked -p imprint-node --bin imprint \
 && install -D target/release/imprint /out/imprint

FROM runtime
COPY --from=build /out/imprint /usr/local/bin/imprint
