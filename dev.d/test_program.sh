#!/usr/bin/env bash
# cargo calls this for each test program: PROGRAM ARGS. In ./dev check the model is not run again until it is compiled again: it reads no
# file, and names nothing of our other code.
set -euo pipefail
export RUSTC_BOOTSTRAP=1                         # the seconds of each test are an option of nightly builds only
case $1 in
  */seckill_model-*)
    if [ -n "${IN_CHECK:-}" ] && [ "$1.passed" -nt "$1" ]; then exit; fi
    "$@"
    touch "$1.passed" ;;
  *) exec "$@" ;;
esac
