# shellcheck shell=bash
# ./dev bench: measures performance. Only its table goes to stdout. The part million runs only by `--only`.

bench() { # ARGS of the program, tools/bench
  need_rust
  unset REDIS_URL DATABASE_URL AMQP_URL          # the user's own servers have other work to do
  use bench
  lock_run bench
  # shellcheck disable=SC2064 # the time is that of now
  trap "verdict bench 'the benchmark' \$? $(now) >&2" EXIT
  trap 'exit 130' INT TERM
  ensure cc mq pg redis wrk >&2
  step "building the servers with every optimization, which takes minutes the first time" "The compiler's message is above" \
    cargo build --locked --profile bench --bins -p seckill -p seckill-bench-hello >&2
  step "building the program that measures them" "The compiler's message is above" \
    cargo build --locked --release -p seckill-bench >&2
  start_empty bench >&2
  eval "$(environment)"
  ulimit -n "$(ulimit -Hn)" || true              # crowds have thousands of connections
  DEV_SET=bench target/release/seckill-bench --program $SECKILL --hello target/release/seckill-bench-hello "$@"
}
