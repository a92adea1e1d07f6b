# shellcheck shell=bash
# ./dev test: all tests and checks. A failure stops none of the others, and the summary at the end names every failure.
#
# First come the checks that compile nothing: they take seconds. Then the tests, so that on a new machine nothing but them is
# compiled before the first one runs. Last come the checks that compile for themselves.

SUMMARY=()                                       # a line for each check
CHECKS_FAILED=0
check() { # WHAT HINT COMMAND…: as `timed`, and adds a line to the summary; the run goes on after a failure
  local what=$1 hint=$2 begin result=ok; begin=$(now); shift 2
  timed "$what" "$@" || { result=FAILED CHECKS_FAILED=1; what+="${hint:+. $hint}"; }
  SUMMARY+=("$(printf '%-6s %9s  %s' $result "$(since "$begin")" "$what")")
}
finish_tests() { # EXIT-CODE BEGIN
  echo "==> summary"
  [ ${#SUMMARY[@]} = 0 ] || printf '    %s\n' "${SUMMARY[@]}"
  failed_tests
  verdict test 'all tests and checks' "$@"
}

TESTS_LOG=.dev/log/tests.log
BUILD_LOG=.dev/log/build-tests.log
build_tests() { cargo test --locked --workspace --no-run 2>&1 | tee $BUILD_LOG; }
no_warnings() { # clippy sees the code only with failpoints; cargo repeats the warnings of what is built already
  ! grep -E '^warning: .* generated [0-9]+ warning' $BUILD_LOG
}
cargo_tests() {
  local code=0
  export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 1))}   # tests often wait
  cargo test --locked --workspace --no-fail-fast > >(exec tee $TESTS_LOG 9>&-) 2>&1 9>&- || code=$?
  wait_for 10 ended $! || true                   # a process that a test left behind would keep the pipe open for ever
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

cargo_deny() {
  # Built without optimization (its release profile has fat LTO): the check takes seconds either way.
  cargo deny --version &>/dev/null || step "installing cargo-deny into .dev/tools, which takes minutes, once" "See .dev/log/cargo-deny.log" \
    logged .dev/log/cargo-deny.log env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=false \
    cargo install --locked --debug cargo-deny --root .dev/tools
  cargo deny check bans licenses sources
}

AXE_VERSION=4.14.1                               # finds what makes a page hard to use for people with disabilities
AXE_DIR=.dev/tools/axe
axe_installed() { grep -qs "\"version\": \"$AXE_VERSION\"" $AXE_DIR/node_modules/axe-core/package.json; }
install_axe() {
  axe_installed || step "installing axe-core into .dev/tools" "See .dev/log/axe.log" logged .dev/log/axe.log \
    npm install --prefix $AXE_DIR --no-save --no-package-lock --ignore-scripts --no-audit --no-fund "axe-core@$AXE_VERSION"
  export AXE_CORE=$TOP/$AXE_DIR/node_modules/axe-core/axe.min.js
}

run_tests() {
  local components="if cargo does not know the command: rustup component add rustfmt clippy" servers
  [ $# = 0 ] || misused
  need_rust
  use test
  lock_run test
  rm -f $TESTS_LOG
  # shellcheck disable=SC2064 # the time is that of now
  trap "finish_tests \$? $(now)" EXIT
  trap 'exit 130' INT TERM
  mapfile -t servers < <(private_servers)
  ensure curl cc chinese chromium faketime nginx npm promtool python shellcheck "${servers[@]}"
  install_axe
  rm -rf target/screenshots                      # those that the tests leave are of this run
  export CARGO_INCREMENTAL=0                     # saves gigabytes of disk, and a first build is no slower

  check "formatting" "cargo fmt corrects it; $components" cargo fmt --all --check
  check "shell scripts" "" shellcheck --check-sourced --external-sources dev .ci/run deploy/*.sh tests/*.sh
  step "building the tests" "The compiler's message is above" build_tests
  check "no compiler warnings" "See $BUILD_LOG" no_warnings
  start_empty test
  need_room 8                                    # the databases of all tests take five
  eval "$(urls)"
  check "tests" "" cargo_tests
  check "clippy" "$components" cargo clippy --quiet --locked --workspace --all-targets --test faults --features failpoints -- -D warnings
  # Its own features, and so its own build of what it needs.
  check "the client over TLS" "" cargo test --quiet --locked -p seckill-client --features tls --lib --test tls
  RUSTDOCFLAGS='-D warnings' check "documentation" "" cargo doc --quiet --locked --workspace --no-deps --document-private-items
  check "dependencies: bans, licenses, sources" "deny.toml says what is allowed" cargo_deny
  return $CHECKS_FAILED
}
