# shellcheck shell=bash
# The three servers of a set: redis, pg and mq. Each has the functions NAME_ports, NAME_start, NAME_ready and NAME_stop.

folder() { if [ "$1" = pg ]; then echo "$POSTGRES_DIR"; else echo "$DIR/$1"; fi; }   # SERVER
check_names() { local name; for name in "$@"; do case $name in redis | pg | mq) ;; *) misused ;; esac; done; }
check_ports() { # SERVER…: called before the first server starts, so that a taken port leaves no set half started
  local name port
  for name in "$@"; do
    if alive "$(folder "$name")/pid"; then continue; fi
    for port in $("${name}_ports"); do
      if [ "$port" = "$EPMD_PORT" ] && alive "$DIR/mq/epmd.pid"; then continue; fi
      ! busy "$port" || die "port $port, for $name, is in use by another program. Stop that program, or choose other ports: ./dev down; rm '$DIR/ports'"
    done
  done
}
await_ready() { # SERVER: waits as long as a single busy core may need
  local log deadline=$(($(now) + 180000000)); log=$(folder "$1")/log
  until "$1_ready"; do
    if dead "$(folder "$1")/pid" || [ "$(now)" -gt "$deadline" ]; then
      tail -n 20 "$log" >&2
      die "$1 did not start: the end of $log is above. ./dev destroy deletes its data, for a new start"
    fi
    sleep 0.05
  done
}
up() { # SERVER…
  local name begin; begin=$(now)
  [ $# -gt 0 ] || { echo "==> all servers are your own: there is nothing to start"; return; }
  check_ports "$@"
  echo "==> starting $*"
  for name in "$@"; do alive "$(folder "$name")/pid" || ("${name}_start"); done
  for name in "$@"; do await_ready "$name"; done
  echo "    ready in $(since "$begin")"
}
down() { # SERVER…
  local name
  for name in "$@"; do "${name}_stop" & done
  wait
}

show() { # NAME PIDFILE PORT COMMAND…: one line of the status; the command says whether the process is ready
  local name=$1 pidfile=$2 port=$3 state; shift 3
  if dead "$pidfile"; then echo "$name stopped"; return 1; fi
  if "$@"; then state=ready; else state='not ready'; fi
  echo "$name pid $(<"$pidfile") port $port $state"
}
show_server() { show "$1/$2" "$(folder "$2")/pid" "$("$2_ports" | cut -d' ' -f1)" "$2_ready"; }   # SET SERVER
status() { # fails unless every private server of the set is running
  local name set i code=0
  use "$SET"
  for name in $(private_servers); do show_server "$SET" "$name" || code=1; done
  [ "$SET" = run ] || return $code
  for set in test faults bench; do
    use $set
    for name in redis pg mq; do [ ! -e "$(folder $name)/pid" ] || show_server $set $name || true; done
  done
  use cluster
  for i in {1..6}; do [ ! -e "$DIR/$i/pid" ] || show "cluster/$i" "$DIR/$i/pid" $((BASE + i)) cluster_ok $((BASE + i)) || true; done
  use run
  show sandbox $SANDBOX_PIDFILE "$SANDBOX_PORT" busy "$SANDBOX_PORT" || true
  show service $PIDFILE "$(http_port)" http_ready || true
  return $code
}

wipe() { # deletes the set's data. What `./dev env` has given to other shells stays
  find "$DIR" -mindepth 1 ! -name ports ! -name '*-password' -delete
  case $POSTGRES_DIR in /var/tmp/*) rm -rf "$POSTGRES_DIR" ;; esac
  use "$(basename "$DIR")"                       # again: a broker without data has another password
}
destroy() {
  local set
  stop_service || true
  for set in run test faults bench; do use $set; down redis pg mq; wipe; done
  use cluster; cluster_down; wipe
  rm -rf .dev/log .dev/prepare
}
