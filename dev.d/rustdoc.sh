#!/usr/bin/env bash
# In place of `rustdoc --test`: writes the documentation of a crate, with warnings as errors. Then tests its examples, if there are any.
set -euo pipefail
arguments=()
source='' skip=''
for argument in "$@"; do
  case $argument in
    *.rs) source=$argument ;;
  esac
  case $skip$argument in
    --test) ;;
    --test-run-directory | --test-runtool | --test-args) skip=1 ;;
    1*) skip='' ;;
    *) arguments+=("$argument") ;;
  esac
done
# cargo also calls this to ask for the version.
[ -n "$source" ] || exec rustdoc "$@"
rustdoc --deny warnings --document-private-items --out-dir "$CARGO_TARGET_DIR/doc" "${arguments[@]}"
! grep -rqE '^ *//[/!] ```' "$(dirname "$source")" || exec rustdoc "$@"
