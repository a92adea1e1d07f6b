# shellcheck shell=bash
# RabbitMQ.

mq_ports() { echo "$AMQP_PORT $DIST_PORT $EPMD_PORT"; }
mq_home() { # enters the broker's folder and sets what the broker and its tools share
  mkdir -p "$DIR/mq" && cd "$DIR/mq"
  export HOME=$PWD                                       # holds the cookie
  export RABBITMQ_NODENAME=seckill@localhost             # the machine's own name need not resolve
  export RABBITMQ_CONF_ENV_FILE=$PWD/rabbitmq-env.conf   # else the file in /etc is read
  export ERL_EPMD_PORT=$EPMD_PORT ERL_EPMD_ADDRESS=$HOST
  unset RABBITMQ_USE_LONGNAME ERL_LIBS NOTIFY_SOCKET
}
mqctl() ( # ARGS: rabbitmqctl for the set's broker
  mq_home
  exec /usr/lib/rabbitmq/bin/rabbitmqctl --quiet "$@"
)
mq_start() (
  mq_home
  # Its configuration holds the password, also if the file existed before.
  umask 077; chmod 700 .; rm -f rabbitmq.conf
  printf '%s\n' "default_user = $AMQP_USER" "default_pass = $AMQP_PASSWORD" 'vm_memory_high_watermark.absolute = 1GB' \
    'disk_free_limit.absolute = 200MB' 'log.file.level = warning' >rabbitmq.conf
  echo '[].' | tee enabled_plugins >advanced.config
  : >rabbitmq-env.conf
  export RABBITMQ_NODE_IP_ADDRESS=$HOST RABBITMQ_NODE_PORT=$AMQP_PORT RABBITMQ_DIST_PORT=$DIST_PORT
  export RABBITMQ_MNESIA_BASE=$PWD/mnesia RABBITMQ_LOG_BASE=$PWD RABBITMQ_PID_FILE=$PWD/beam.pid
  export RABBITMQ_GENERATED_CONFIG_DIR=$PWD/config RABBITMQ_SCHEMA_DIR=$PWD/schema
  export RABBITMQ_CONFIG_FILE=$PWD/rabbitmq.conf RABBITMQ_ADVANCED_CONFIG_FILE=$PWD/advanced.config
  export RABBITMQ_ENABLED_PLUGINS_FILE=$PWD/enabled_plugins
  export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}'   # else it binds 0.0.0.0
  export RUNNING_UNDER_SYSTEMD=true                      # else the pid is that of a shell, not of the broker
  # The set has its own epmd: by default, Erlang starts one that outlives the broker.
  alive epmd.pid || spawn epmd.pid epmd.log epmd -port "$EPMD_PORT" -address $HOST
  spawn pid log /usr/lib/rabbitmq/bin/rabbitmq-server    # the one in /usr/sbin insists on root
)
mq_ready() { # the broker answers AMQP's greeting with a method frame
  local first
  first=$({ exec 3<>"/dev/tcp/$HOST/$AMQP_PORT" && printf 'AMQP\x00\x00\x09\x01' >&3 && timeout 1 head -c1 <&3 | od -An -tu1; } 2>/dev/null) || return 1
  [ "${first//[[:space:]]/}" = 1 ]
}
mq_stop() { end "$DIR/mq/pid" TERM 30; end "$DIR/mq/epmd.pid" TERM 5; }
