# shellcheck shell=bash
# Background processes. Each runs in its own session and is identified by its pid file.

# A pid alone is not enough: a killed daemon stays a zombie until pid 1 reaps it, and `kill -0` succeeds for a zombie. The system may
# also reuse the number. So a process is ours while its start time is the one in the pid file's pair.
start_time() { # PID: nothing if the process has ended
  local stat
  { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
  stat=${stat##*) }
  [ "${stat%% *}" = Z ] || cut -d' ' -f20 <<<"$stat"
}
write_pid() { echo "$2" >"$1"; start_time "$2" >"$1.start"; }   # PIDFILE PID
alive() { [ -s "$1" ] && [ -s "$1.start" ] && [ "$(start_time "$(<"$1")")" = "$(<"$1.start")" ]; }   # PIDFILE
dead() { ! alive "$1"; }                                        # PIDFILE
spawn() { # PIDFILE LOG COMMAND…
  local pidfile=$1 log=$2; shift 2
  setsid "$@" </dev/null >>"$log" 2>&1 9>&- &    # 9 is the lock of ./dev test
  write_pid "$pidfile" $!
}
wait_for() { # SECONDS COMMAND…: fails if the command has not succeeded by then
  local deadline=$(($(now) + $1 * 1000000)); shift
  until "$@"; do [ "$(now)" -lt "$deadline" ] || return 1; sleep 0.05; done
}
end() { # PIDFILE SIGNAL SECONDS: sends the signal, and SIGKILL if the process has not ended by then
  if alive "$1"; then
    kill "-$2" "$(<"$1")" 2>/dev/null || true
    wait_for "$3" dead "$1" || { kill -KILL "$(<"$1")" 2>/dev/null || true; wait_for 5 dead "$1" || true; }
  fi
  rm -f "$1" "$1.start"
}
