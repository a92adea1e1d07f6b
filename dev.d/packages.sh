# shellcheck shell=bash
# Installs what is missing, from Debian's packages.

missing() { # THING…: prints the packages that provide the missing ones
  local thing
  for thing in "$@"; do
    case $thing in
      redis) command -v redis-server >/dev/null || echo redis-server ;;
      pg) [ -n "$(pg_bin initdb)" ] || echo postgresql ;;
      mq) [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || echo rabbitmq-server ;;
      curl | openssl | wrk | shellcheck) command -v "$thing" >/dev/null || echo "$thing" ;;
      nginx) [ -x /usr/sbin/nginx ] || echo nginx ;;
      promtool) command -v promtool >/dev/null || echo prometheus ;;   # the server comes with it
      pgbouncer) [ -x /usr/sbin/pgbouncer ] || echo pgbouncer ;;
      chromium)                                  # without its recommendations it comes without any font
        [ -x /usr/lib/chromium/chromium-headless-shell ] || echo chromium-headless-shell fonts-liberation
        [ -x /usr/bin/chromedriver ] || echo chromium-driver ;;
      chinese)                                   # a font, for pictures of the pages
        [ -n "$(fc-list :lang=zh 2>/dev/null)" ] || echo fontconfig fonts-wqy-microhei ;;
      npm) command -v npm >/dev/null || echo nodejs npm ;;
      pip) python3 -m pip --version &>/dev/null || echo python3-pip ;;
      python) command -v python3 >/dev/null || echo python3 ;;
      faketime) compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null || echo libfaketime ;;
      cc) command -v cc >/dev/null || echo build-essential pkg-config ;;
    esac
  done
}
ensure() { # THING…: installs the missing ones
  local packages sudo=()
  mapfile -t packages < <(missing "$@" | tr ' ' '\n')
  [ ${#packages[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "apt-get is missing. Install these by hand: ${packages[*]}"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "sudo is missing. Run as root: apt-get install ${packages[*]}"
    sudo=(sudo)
  fi
  mkdir -p .dev/log
  step "installing ${packages[*]}" "See .dev/log/install.log, or install by hand: apt-get install ${packages[*]}" \
    logged .dev/log/install.log "${sudo[@]}" bash -c "$(declare -f install_packages); install_packages \"\$@\"" dev "${packages[@]}"
}
install_packages() { # PACKAGE…, as root: installs them and changes nothing else in the system
  set -euo pipefail
  export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
  policy=/usr/sbin/policy-rc.d clusters=/etc/postgresql-common/createcluster.d undo=()
  trap 'for command in "${undo[@]}"; do $command; done' EXIT
  trap 'exit 130' INT TERM
  # Packages start their servers. Debian runs this program first; exit code 101 forbids the start.
  if [ ! -e $policy ]; then
    undo+=("rm -f $policy")
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod 755 $policy
  fi
  # The package of PostgreSQL also creates a database cluster, unless this setting forbids it.
  if [[ " $* " == *" postgresql "* ]]; then
    undo+=("rm -f $clusters/seckill.conf" "rmdir -p --ignore-fail-on-non-empty $clusters")
    mkdir -p $clusters
    echo 'create_main_cluster = false' >$clusters/seckill.conf
  fi
  apt-get update </dev/null
  apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 "$@" </dev/null
  # The new servers must not start with the machine either.
  for unit in "$@"; do
    case $unit in
      redis-server | rabbitmq-server | nginx | prometheus) [ ! -e "/etc/init.d/$unit" ] || update-rc.d "$unit" disable ;;
    esac
    if [ "$unit" = rabbitmq-server ] && [ -d /run/systemd/system ]; then systemctl disable epmd.socket epmd.service; fi
  done
}
need_rust() {
  command -v cargo >/dev/null || die "Rust is missing. Install it as https://rustup.rs describes, then run this command again"
}
