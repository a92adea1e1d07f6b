# shellcheck shell=bash
# PostgreSQL.

pg_ports() { echo "$POSTGRES_PORT"; }
pg_bin() { compgen -G "/usr/lib/postgresql/*/bin/$1" | sort -V | tail -1; }   # PROGRAM: of the newest version
sql() { # ARGS: psql, without the psqlrc and the PG… settings of the user
  (unset "${!PG@}"; PGPASSWORD=$POSTGRES_PASSWORD "$(pg_bin psql)" -XAtq -v ON_ERROR_STOP=1 -h $HOST -p "$POSTGRES_PORT" -U seckill "$@")
}

# When a server is killed, a process with a running query outlives it. Such processes are found by their working folder.
orphans() {
  # shellcheck disable=SC2016 # the variables belong to the inner bash
  "${AS_POSTGRES[@]}" bash -c 'for p in /proc/[0-9]*; do
    if [ "$p/cwd" -ef "$1" ] && [ "$(<"$p/comm")" = postgres ]; then echo "${p#/proc/}"; fi
  done' dev "$POSTGRES_DIR/data" 2>/dev/null
}
no_orphans() { [ -z "$(orphans)" ]; }
end_orphans() { no_orphans || { orphans | xargs kill -QUIT 2>/dev/null || true; wait_for 10 no_orphans; }; }

pg_start() {
  local data=$POSTGRES_DIR/data max_connections=200 naptime=1min
  if [ "$(id -u)" = 0 ]; then install -d -o postgres -g postgres -m 700 "$POSTGRES_DIR"; else mkdir -p "$POSTGRES_DIR"; fi
  cd "$POSTGRES_DIR"
  if [ ! -s "$data/PG_VERSION" ]; then
    # Not SCRAM, which protects weak passwords: its 4096 hashes per connection take a tenth of a second in unoptimized tests. The inner
    # bash runs as the user that has to read the password.
    # shellcheck disable=SC2016 # the variables belong to the inner bash
    "${AS_POSTGRES[@]}" bash -c '"$@" --pwfile=<(cat)' dev "$(pg_bin initdb)" -D "$data" -U seckill --auth=md5 -E UTF8 \
      --locale=C.UTF-8 --no-sync <"$DIR/pg-password" >"$TOP/.dev/log/initdb.log" 2>&1 \
      || die "initdb failed: $(tail -n 3 "$TOP/.dev/log/initdb.log")"
  fi
  [ -n "$POSTGRES_PASSWORD" ] || echo "    PostgreSQL has data of an earlier version, and asks no user of this machine for a password: ./dev destroy, for one that does"
  end_orphans || die "processes of an earlier PostgreSQL do not end: $(orphans | xargs)"
  rm -f "$data/postmaster.pid"                   # else PostgreSQL takes its own zombie for a running server
  [ "$DIR" = "$TOP/.dev/run" ] || max_connections=600   # every test has a pool of its own
  [ "$DIR" != "$TOP/.dev/test" ] || naptime=1h   # autovacuum looks into each database so often, and the tests have hundreds
  spawn pid log "${AS_POSTGRES[@]}" "$(pg_bin postgres)" -D "$data" -p "$POSTGRES_PORT" -c listen_addresses=$HOST \
    -c unix_socket_directories= -c max_connections=$max_connections -c shared_buffers=256MB -c max_wal_size=4GB \
    -c autovacuum_naptime=$naptime -c wal_compression=lz4 -c shared_preload_libraries=pg_stat_statements \
    -c pg_stat_statements.max=50000              # every test has a database of its own, and some count its statements
}
pg_ready() { # also creates the database, if the server is new
  local found
  found=$(sql -d postgres -c "SELECT 1 FROM pg_database WHERE datname = 'seckill'" 2>/dev/null) || return 1
  [ -n "$found" ] || sql -d postgres -c 'CREATE DATABASE seckill'
}
pg_stop() { end "$POSTGRES_DIR/pid" INT 30; end_orphans || true; }   # SIGINT does not wait for clients to disconnect
