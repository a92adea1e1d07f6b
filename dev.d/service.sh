# shellcheck shell=bash
# The service, and the sandbox: a program that acts as a payment channel.

SECKILL=target/release/seckill
PIDFILE=.dev/run/seckill.pid
SANDBOX_PIDFILE=.dev/run/sandbox.pid

http_port() { local bind=${SECKILL_HTTP__BIND:-$HOST:8080}; echo "${bind##*:}"; }
http_url() {
  local bind=${SECKILL_HTTP__BIND:-$HOST:8080} address
  address=${bind%:*}
  case $address in 0.0.0.0 | '[::]') address=$HOST ;; esac
  echo "http://$address:${bind##*:}"
}
http_ready() { curl -fso /dev/null --max-time 2 --noproxy '*' "$(http_url)/readyz"; }
ready_or_dead() { http_ready || dead $PIDFILE; }
welcome() { # LAST-LINE
  local url sale
  url=$(http_url)
  sale=$($SECKILL sale list --format json 2>/dev/null | grep -oE '"id": *[0-9]+' | head -1 | tr -cd 0-9) || true
  cat <<TEXT

    The page:  $url

    Buy a unit, as the user alice:

api=$url/api/v1
token=\$(curl -s \$api/dev/token -H 'content-type: application/json' -d '{"user":"alice"}' | sed 's/.*"token": *"\([^"]*\)".*/\1/')
key=\$(curl -s \$api/sales/${sale:-1}/state | sed 's/.*"key": *"\([^"]*\)".*/\1/')
curl -si \$api/sales/${sale:-1}/purchases -H "authorization: Bearer \$token" -H 'content-type: application/json' -d "{\"key\":\"\$key\"}"

    Send a rush of buyers:

./dev load

    Show the orders:

eval "\$(./dev env)"; $SECKILL orders --sale ${sale:-1}

    $1
TEXT
}
install_and_start() { # SERVER…, while cargo compiles: .dev/log/servers.log has what it says
  ensure "$@"
  use run                                        # again: the installation of PostgreSQL has added its user
  up "$@"
}
build() { # optimized where a rush spends its time, and quick to build
  cargo build --profile quick --locked --bin seckill && mkdir -p "${SECKILL%/*}" && ln -f target/quick/seckill $SECKILL
}
run() {
  local what="building Seckill" pid=$$ servers starting
  case "${1:-}" in '' | --detach) ;; *) misused ;; esac
  need_rust
  mapfile -t servers < <(private_servers)
  ensure curl cc
  use run
  if alive $PIDFILE; then
    eval "$(environment)"
    echo "==> already running, pid $(<$PIDFILE)"
    welcome "./dev stop stops the service, ./dev down also its servers."
    return
  fi
  ! busy "$(http_port)" || die "port $(http_port) is in use by another program. Stop that program, or choose a port: SECKILL_HTTP__BIND=$HOST:8081 ./dev run"
  echo "==> installing and starting ${servers[*]:-no server}, beside the build"
  [ "$(id -u)" = 0 ] || [ -z "$(missing "${servers[@]}")" ] || sudo -v   # asks for the password now, if it has to
  install_and_start "${servers[@]}" >.dev/log/servers.log 2>&1 & starting=$!
  [ -e target/quick/seckill ] || what+=": about 400 crates, which take 4 to 8 minutes on two cores, and then seconds"
  step "$what" "The compiler's message is above" build
  wait $starting || { cat .dev/log/servers.log >&2; die "the servers did not start: see above"; }
  use run
  eval "$(environment)"
  step "bringing the database up to date" "./dev destroy deletes the data, for a new start" $SECKILL migrate
  step "creating a sample sale" "./dev destroy deletes the data, for a new start" $SECKILL seed
  if [ "$SECKILL_CHANNELS__SANDBOX__URL" = "http://$SECKILL_SANDBOX__BIND" ] && dead $SANDBOX_PIDFILE; then
    echo "==> starting the payment sandbox at $SECKILL_CHANNELS__SANDBOX__URL"
    spawn $SANDBOX_PIDFILE .dev/log/sandbox.log $SECKILL channel-sandbox
    if ! wait_for 10 busy "$SANDBOX_PORT"; then tail -n 5 .dev/log/sandbox.log >&2; die "the payment sandbox did not start"; fi
  fi
  echo "==> starting the service"
  if [ -n "${1:-}" ]; then
    spawn $PIDFILE .dev/log/seckill.log $SECKILL serve --with-workers
    if ! wait_for 60 ready_or_dead || dead $PIDFILE; then
      tail -n 20 .dev/log/seckill.log >&2
      end $PIDFILE TERM 30
      die "the service did not become ready: the end of .dev/log/seckill.log is above"
    fi
    welcome "The service runs in the background and logs to .dev/log/seckill.log. ./dev stop stops it, ./dev down also its servers."
  else
    write_pid $PIDFILE $pid                      # exec keeps the pid. A grandchild prints the welcome, so that the service
    (                                            # has no child to reap.
      { wait_for 60 ready_or_dead && alive $PIDFILE && welcome "Ctrl-C stops the service, ./dev down also its servers."; } &
    )
    exec $SECKILL serve --with-workers
  fi
}
stop_service() { # fails if the service was not running
  local code=1
  if alive $PIDFILE; then end $PIDFILE TERM 30; echo "==> the service has stopped"; code=0; fi
  end $SANDBOX_PIDFILE TERM 10
  rm -f $PIDFILE $PIDFILE.start
  return $code
}
load() { # ARGS of `seckill load`
  [ -x $SECKILL ] || die "the service is not built yet: ./dev run"
  use run
  eval "$(environment)"
  exec $SECKILL load "$@"
}
