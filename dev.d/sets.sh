# shellcheck shell=bash
# Sets of servers: .dev/run, .dev/test, .dev/faults, .dev/bench and .dev/cluster. Each set keeps a block of ten ports.

SET=${DEV_SET:-run}                              # the set that up, down, status and env act on

busy() { (exec 3<>"/dev/tcp/$HOST/$1") 2>/dev/null; }   # PORT: something listens there
block_free() { # BASE
  local port
  if grep -qsx "$1" .dev/*/ports; then return 1; fi
  for port in $(seq "$1" $(($1 + 9))); do
    if busy "$port" || busy $((port + 10000)); then return 1; fi
  done
}
new_secret() { (umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$1"); }   # FILE
use() { # SET: defines the folder, ports and addresses of the set
  DIR=$TOP/.dev/$1
  [ ! -e .dev ] || [ -O .dev ] || die ".dev belongs to another user. Continue as that user, who can also run ./dev destroy and rm -r .dev"
  mkdir -p "$DIR" .dev/log
  if [ ! -s "$DIR/ports" ]; then
    # The search starts at a place that depends on the folder, so that two checkouts do not collide. All ports are below 32768, even with
    # the 10000 that a Redis Cluster adds for its bus: outgoing connections may use the ports above.
    local n=$((0x$(sha1sum <<<"$DIR" | cut -c1-6) % 1000))
    until block_free $((12000 + n * 10)); do n=$(((n + 1) % 1000)); done
    echo $((12000 + n * 10)) >"$DIR/ports"
  fi
  BASE=$(<"$DIR/ports")
  REDIS_PORT=$BASE POSTGRES_PORT=$((BASE + 1)) AMQP_PORT=$((BASE + 2)) DIST_PORT=$((BASE + 3)) EPMD_PORT=$((BASE + 4)) SANDBOX_PORT=$((BASE + 5))
  PRIVATE_REDIS=redis://$HOST:$REDIS_PORT/
  # The broker's password belongs to the set: outside development mode the service refuses RabbitMQ's default password. A broker with
  # older data keeps its password.
  AMQP_USER=seckill
  if [ ! -s "$DIR/mq-password" ]; then
    if [ -d "$DIR/mq/mnesia" ]; then AMQP_USER=guest; else new_secret "$DIR/mq-password"; fi
  fi
  if [ $AMQP_USER = guest ]; then AMQP_PASSWORD=guest; else AMQP_PASSWORD=$(<"$DIR/mq-password"); fi
  PRIVATE_AMQP=amqp://$AMQP_USER:$AMQP_PASSWORD@$HOST:$AMQP_PORT/%2f
  # PostgreSQL refuses to run as root. The user that it runs as instead cannot enter a folder of mode 700.
  POSTGRES_DIR=$DIR/pg AS_POSTGRES=()
  if [ "$(id -u)" = 0 ] && id postgres &>/dev/null; then
    local outside; outside=/var/tmp/seckill-pg-$(sha1sum <<<"$DIR" | cut -c1-12)
    AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --init-groups --)
    if [ -d "$outside" ] || ! "${AS_POSTGRES[@]}" test -x "$DIR"; then POSTGRES_DIR=$outside; fi
  fi
  # Data that was created without a password keeps working without one (pg_start says so).
  [ -s "$DIR/pg-password" ] || [ -s "$POSTGRES_DIR/data/PG_VERSION" ] || new_secret "$DIR/pg-password"
  POSTGRES_PASSWORD=$(cat "$DIR/pg-password" 2>/dev/null) || true
  PRIVATE_POSTGRES=postgres://seckill${POSTGRES_PASSWORD:+:$POSTGRES_PASSWORD}@$HOST:$POSTGRES_PORT/seckill
}
forget_private_urls() { # unsets addresses that `./dev env` put into this shell: only the user's own servers count as given
  local set
  for set in run test faults bench; do
    [ -s ".dev/$set/ports" ] || continue
    use $set
    [ "${REDIS_URL:-}" != "$PRIVATE_REDIS" ] || unset REDIS_URL
    [ "${DATABASE_URL:-}" != "$PRIVATE_POSTGRES" ] || unset DATABASE_URL
    [ "${AMQP_URL:-}" != "$PRIVATE_AMQP" ] || unset AMQP_URL
  done
}
private_servers() { # the servers that the user does not provide, the slowest to start first
  [ -n "${AMQP_URL:-}" ] || echo mq
  [ -n "${DATABASE_URL:-}" ] || echo pg
  [ -n "${REDIS_URL:-}" ] || echo redis
}
urls() {
  printf 'export %s=%q\n' REDIS_URL "${REDIS_URL:-$PRIVATE_REDIS}" DATABASE_URL "${DATABASE_URL:-$PRIVATE_POSTGRES}" \
    AMQP_URL "${AMQP_URL:-$PRIVATE_AMQP}"
}
environment() { # what `./dev env` prints
  local secret=$DIR/secret
  [ -s "$secret" ] || new_secret "$secret"
  urls
  printf 'export %s=%q\n' SECKILL_DEV 1 SECKILL_AUTH__JWT_SECRET "${SECKILL_AUTH__JWT_SECRET:-$(<"$secret")}" \
    SECKILL_HTTP__TRUSTED_PROXIES "${SECKILL_HTTP__TRUSTED_PROXIES:-$HOST}"
  [ -z "${SECKILL_HTTP__BIND:-}" ] || printf 'export SECKILL_HTTP__BIND=%q\n' "$SECKILL_HTTP__BIND"
  printf 'export %s=%q\n' SECKILL_CHANNELS__SANDBOX__URL "${SECKILL_CHANNELS__SANDBOX__URL:-http://$HOST:$SANDBOX_PORT}" \
    SECKILL_SANDBOX__BIND "$HOST:$SANDBOX_PORT" SECKILL_SANDBOX__DATA_FILE "$DIR/sandbox.jsonl" \
    SECKILL_SANDBOX__CALLBACK_URL "$(http_url)/api/v1/payments/callbacks/sandbox"
}
