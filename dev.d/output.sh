# shellcheck shell=bash
# Messages, and steps whose time is measured.

die() { echo "dev: $*" >&2; exit 1; }
misused() { usage >&2; exit 2; }

now() { echo "${EPOCHREALTIME/[.,]/}"; }         # microseconds; some languages write the decimal point as a comma
since() { # BEGIN: the time that has passed, in seconds
  local ms=$((($(now) - $1) / 1000))
  echo "$((ms / 1000)).$((ms % 1000 / 100)) s"
}

timed() { # WHAT COMMAND…: announces the command, runs it, says how long it took, and returns its exit code
  local what=$1 begin code=0; begin=$(now); shift
  echo "==> $what"
  "$@" || code=$?
  if [ $code = 0 ]; then echo "    done in $(since "$begin")"; else echo "    failed after $(since "$begin")"; fi
  return $code
}
step() { # WHAT HINT COMMAND…: as `timed`; a failure ends the script with a message and the hint
  local what=$1 hint=$2; shift 2
  timed "$what" "$@" || die "this failed: $what${hint:+. $hint}"
}
logged() { # FILE COMMAND…: sends all output to the file
  local log=$1; shift
  "$@" >"$log" 2>&1
}
