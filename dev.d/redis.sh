# shellcheck shell=bash
# Redis. Every option is on the command line, so that /etc/redis is never read.

redis_ports() { echo "$REDIS_PORT"; }
redis_start() {
  mkdir -p "$DIR/redis" && cd "$DIR/redis"
  spawn pid log redis-server --port "$REDIS_PORT" --bind $HOST --daemonize no --save '' \
    --appendonly yes --appendfsync everysec --maxmemory 1gb --maxmemory-policy noeviction \
    --auto-aof-rewrite-min-size 256mb
}
redis_answers() { [ "$(redis-cli -h $HOST -p "$1" PING 2>/dev/null)" = PONG ]; }   # PORT; while it loads, it answers LOADING
redis_ready() { redis_answers "$REDIS_PORT"; }
redis_stop() { end "$DIR/redis/pid" TERM 10; }
