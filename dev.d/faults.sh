# shellcheck shell=bash
# ./dev test --faults: kills and disturbs the whole system, and audits it after each run.

run_faults() { # ARGS of the runner, tests/faults/main.rs
  need_rust
  unset REDIS_URL DATABASE_URL AMQP_URL          # the suite kills servers, so it never uses the user's own
  use faults
  lock_run faults
  # shellcheck disable=SC2064 # the time is that of now
  trap "verdict faults 'the fault suite' \$? $(now)" EXIT
  trap 'exit 130' INT TERM
  ensure curl cc mq pg redis
  step "building the fault suite, with failpoints" "" cargo test --locked --features failpoints --test faults --no-run
  start_empty faults
  [ $# -gt 0 ] || (                              # skipped if the user asked for particular scenarios
    eval "$(urls)"
    step "tests that kill a process at each failpoint of outflows and payments" "" \
      cargo test --quiet --locked --features failpoints --test outflow --test money -- a_death_at_any_failpoint
  )
  DEV_SET=faults cargo test --quiet --locked --features failpoints --test faults -- "$@"
}
