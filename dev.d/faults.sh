# shellcheck shell=bash
# ./dev test --faults: kills and disturbs the whole system, and audits it after each run.

deaths_at_failpoints() { # cargo's name filter passes when nothing matches, so the tests are counted
  local log=.dev/log/failpoints.log
  house_tests --quiet --test api --test outflow --test money -- a_death_at_any_failpoint 2>&1 | tee $log
  [ $(( $(sed -n 's/^test result: ok. \([1-9]\) passed.*/\1/p' $log | paste -sd+) )) = 4 ] || die "two tests of api, and one each of outflow and money, should have run"
}

run_faults() { # ARGS of the runner, tests/faults/main.rs
  need_rust
  use_one_build
  unset REDIS_URL DATABASE_URL AMQP_URL          # the suite kills servers, so it never uses the user's own
  use faults
  lock_run faults
  # shellcheck disable=SC2064 # the time is that of now
  trap "verdict faults 'the fault suite' \$? $(now)" EXIT
  trap 'exit 130' INT TERM
  ensure curl cc mq nginx pg redis
  step "building the fault suite, with failpoints" "" house_tests --test faults --no-run
  start_empty faults
  [[ " $*" =~ " --only"|" --place"|" --list" ]] || (   # skipped if the user asked for particular scenarios
    eval "$(urls)"
    step "tests that kill a process at each failpoint of outflows, payments, cancellations and order webhooks" "" deaths_at_failpoints
  )
  DEV_SET=faults house_tests --quiet --test faults -- "$@"
}
