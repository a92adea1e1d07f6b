FROM rust:1-bookworm AS build
WORKDIR /seckill
COPY . .
# The queries are checked against .sqlx, so the build needs no database.
ENV SQLX_OFFLINE=true
# The caches outlive a build but are not part of the image, so the program is copied out of them.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/seckill/target \
    cargo build --release --locked --bin seckill && cp target/release/seckill /usr/local/bin/

FROM debian:bookworm-slim
RUN useradd --system --no-create-home seckill && install -d -o seckill /data /var/www/seckill
# The certificate authorities that outgoing TLS connections trust.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /usr/local/bin/seckill /usr/local/bin/
USER seckill
EXPOSE 8080
ENTRYPOINT ["seckill"]
CMD ["serve"]
