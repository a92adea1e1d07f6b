# The program `seckill`, small and without root. docs/install.md explains it. tests/docker_by_hand.sh carries out these steps without
# Docker, so use only instructions that it knows.

# The inputs for building the dependencies: each crate's manifest, with an empty program in place of its code, and an empty test where
# a manifest names one.
FROM rust:1.95.0-bookworm AS manifests
WORKDIR /seckill
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY tools tools
RUN find crates tools -type f ! -name Cargo.toml ! -name build.rs -delete \
 && mkdir -p tests/faults tools/client/tests && : >tools/client/tests/tls.rs && echo 'fn main() {}' >tests/faults/main.rs \
 && for crate in . crates/* tools/*; do mkdir -p "$crate/src" && : >"$crate/src/lib.rs" && echo 'fn main() {}' >"$crate/src/main.rs"; done

FROM rust:1.95.0-bookworm AS build
WORKDIR /seckill
# The queries are checked against .sqlx, so the build needs no database.
ENV SQLX_OFFLINE=true
# The dependencies alone. This layer is built again only after a change of a manifest: the code comes later.
COPY --from=manifests /seckill .
RUN cargo build --release --locked --bin seckill
COPY . .
# cargo compares the times of files. Those of the code may be older than the empty programs.
RUN find src crates tools -type f -exec touch {} + && cargo build --release --locked --bin seckill

FROM debian:12.11-slim
# A number, so that an orchestrator can see that it is not root.
RUN useradd --system --no-create-home --uid 10001 seckill && install -d -o seckill /data /var/www/seckill
# The certificate authorities that outgoing TLS connections trust.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY deploy/answers.sh /usr/local/bin/answers
COPY --from=build /seckill/target/release/seckill /usr/local/bin/
USER 10001
EXPOSE 8080
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["answers"]
ENTRYPOINT ["seckill"]
CMD ["serve"]
