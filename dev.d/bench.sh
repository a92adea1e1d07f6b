# shellcheck shell=bash
# ./dev bench: measures performance. Only its table goes to stdout. The parts million, scale and idle run only by `--only`.

OTHER_LIMITER=.dev/tools/bin/throttlecrab-server # a public limiter server to compare with
install_other_limiter() {
  ensure protoc                                  # needed by its build, because it also speaks gRPC
  step "installing throttlecrab-server into .dev/tools, which takes minutes, once" "See .dev/log/throttlecrab.log" \
    logged .dev/log/throttlecrab.log env -u CARGO_TARGET_DIR \
    cargo install --locked throttlecrab-server@0.4.40 --root .dev/tools
}
compare_limiters() {
  [ -x $OTHER_LIMITER ] || (install_other_limiter) >&2 || echo "dev: the benchmark continues without throttlecrab-server" >&2
}
bench_part() { # ARGS of the program: the part that --only names, or nothing
  while [ $# -gt 0 ]; do
    case $1 in
      --only) echo "${2:-}"; return ;;
      --only=*) echo "${1#--only=}"; return ;;
    esac
    shift
  done
}
bench() { # ARGS of the program, crates/bench
  local part programs=(-p seckill-bench) tools=(cc mq pg redis)
  part=$(bench_part "$@")
  case $part in                                  # what only some parts need
    '' | gateway) tools+=(nginx wrk) ;;
    rush | million | challenges | watchers | overload | idle) ;;   # they have generators of their own
    *) tools+=(wrk) ;;
  esac
  # The program itself needs nothing of the service's code. What records the limiters' calls does, and so is built with all of it.
  case $part in '' | flow) programs+=(-p seckill-bench-limiters) ;; esac
  need_rust
  unset REDIS_URL DATABASE_URL AMQP_URL          # the user's own servers have other work to do
  use bench
  lock_run bench
  # shellcheck disable=SC2064 # the time is that of now
  trap "verdict bench 'the benchmark' \$? $(now) >&2" EXIT
  trap 'exit 130' INT TERM
  ensure "${tools[@]}" >&2
  step "building the servers with every optimization, which takes minutes the first time" "The compiler's message is above" \
    cargo build --locked --profile bench --bins -p seckill -p seckill-bench-hello >&2
  step "building the program that measures them" "The compiler's message is above" \
    cargo build --locked --release "${programs[@]}" >&2
  case $part in '' | flow) compare_limiters ;; esac   # the other tables do not compare with the other limiter
  start_empty bench >&2
  eval "$(environment)"
  ulimit -n "$(ulimit -Hn)" || true              # crowds have thousands of connections
  DEV_SET=bench target/release/seckill-bench --program $SECKILL --hello target/release/seckill-bench-hello "$@"
}
