# shellcheck shell=bash
# A Redis Cluster of six nodes.

cluster_ok() { redis-cli -h $HOST -p "$1" CLUSTER INFO 2>/dev/null | grep -q '^cluster_state:ok'; }   # PORT
cluster_start() { # N
  mkdir -p "$DIR/$1" && cd "$DIR/$1"
  spawn pid log redis-server --port $((BASE + $1)) --bind $HOST --daemonize no --save '' --appendonly yes \
    --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000 --cluster-announce-ip $HOST \
    --cluster-require-full-coverage no --repl-diskless-sync-delay 0 --maxmemory 256mb --maxmemory-policy noeviction
}
introduce_all() { # on a slow machine an introduction may come to nothing, and one side does not know the other
  local i j
  for i in {1..6}; do
    [ "$(redis-cli -h $HOST -p $((BASE + i)) CLUSTER NODES | wc -l)" -lt 6 ] || continue
    for j in {1..6}; do [ "$i" = "$j" ] || redis-cli -h $HOST -p $((BASE + i)) CLUSTER MEET $HOST $((BASE + j)) >/dev/null; done
  done
}
replicas_ok() { # the cluster's state is ok before its replicas are known, but a failover works only with them
  local i synced=0
  introduce_all
  for i in {1..6}; do
    [ "$(redis-cli -h $HOST -p $((BASE + i)) CLUSTER NODES | awk '$3 ~ /slave/ && $8 == "connected"' | wc -l)" = 3 ] || return 1
    if redis-cli -h $HOST -p $((BASE + i)) INFO replication | grep -q '^master_link_status:up'; then synced=$((synced + 1)); fi
  done
  [ $synced = 3 ]
}
cluster_up() {
  local i nodes=() begin; begin=$(now)
  echo "==> starting six Redis nodes"
  for i in {1..6}; do
    nodes+=("$HOST:$((BASE + i))")
    alive "$DIR/$i/pid" && continue
    ! busy $((BASE + i)) || die "port $((BASE + i)) is in use by another program. Stop that program, or choose other ports: ./dev destroy; rm '$DIR/ports'"
    (cluster_start "$i")
  done
  for i in {1..6}; do wait_for 20 redis_answers $((BASE + i)) || die "node $i did not start: see $DIR/$i/log"; done
  # The nodes of a cluster that was created before find each other again.
  if [ ! -e "$DIR/created" ]; then
    redis-cli --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes >.dev/log/cluster.log 2>&1 \
      || die "the cluster could not be created: see .dev/log/cluster.log, then ./dev destroy"
    touch "$DIR/created"
  fi
  for i in {1..6}; do wait_for 30 cluster_ok $((BASE + i)) || die "node $i does not join the cluster: see $DIR/$i/log, then ./dev destroy"; done
  wait_for 30 replicas_ok || die "the replicas do not follow their masters: see $DIR/*/log, then ./dev destroy"
  echo "    ready in $(since "$begin"): ${nodes[*]}"
}
cluster_down() { local i; for i in {1..6}; do end "$DIR/$i/pid" TERM 10 & done; wait; }
