#!/usr/bin/env bash
# In place of `rustdoc --test`: writes the documentation of a crate, and warnings are errors. Then tests its examples, if it has any.
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
# cargo also asks which version this is.
[ -n "$source" ] || exec rustdoc "$@"
rustdoc --deny warnings --document-private-items --out-dir "$CARGO_TARGET_DIR/doc" "${arguments[@]}"
! grep -rqE '^ *//[/!] ```' "$(dirname "$source")" || exec rustdoc "$@"
