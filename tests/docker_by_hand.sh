#!/usr/bin/env bash
# Carries out the Dockerfile without Docker: tests/docker_by_hand.sh FOLDER, as root on Debian, with Rust, debootstrap and rsync. FROM rust is an
# empty folder on this machine; FROM debian is a new Debian by debootstrap, which later steps enter by chroot. At the end the image's program is
# started as its user: the bank, and serve if REDIS_URL, DATABASE_URL and AMQP_URL are set (./dev up; eval "$(./dev env)"). FOLDER must be new, and
# can be deleted afterwards. It cannot show that the named images exist, nor how Docker caches the layers.
set -euo pipefail

die() { echo "docker_by_hand.sh: $1" >&2; exit 1; }
[ $# = 1 ] || die "usage: docker_by_hand.sh FOLDER"
[ "$(id -u)" = 0 ] || die "chroot needs root"
[ ! -e "$1" ] || die "$1 exists"
for tool in debootstrap cargo rsync; do command -v $tool >/dev/null || die "$tool is missing"; done
mkdir -p "$1"
images=$(cd "$1" && pwd -P)
cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset CARGO_TARGET_DIR                           # the program is where the Dockerfile expects it

# The context: what Docker would be sent. Its patterns mean the same to rsync here: each is anchored, and a later one wins.
ignored=(--exclude=/.git)
while IFS= read -r line; do
  case $line in
    '' | '#'*) ;;
    '!'*) ignored=("--include=/${line#!}" "${ignored[@]}") ;;
    *) ignored+=("--exclude=/$line") ;;
  esac
done <.dockerignore
rsync -a "${ignored[@]}" ./ "$images/context/"

stage='' base='' workdir=/ user=0 check='' entrypoint='' variables=()
run() { # COMMAND: a RUN of this stage
  echo "    $1"
  if [ "$base" = debian ]; then
    chroot "$images/$stage" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -euc "cd $workdir; $1"
  else
    (cd "$images/$stage$workdir" && env "${variables[@]}" sh -euc "$1")
  fi
}
copy() { # [--from=STAGE] SOURCE… TARGET
  local from=$images/context source target=${*: -1}
  if [[ $1 = --from=* ]]; then from=$images/${1#--from=}; shift; fi
  [[ $target = /* ]] || target=$workdir/$target
  target=$images/$stage$target
  for source in "${@:1:$#-1}"; do
    # The authorities are this machine's: the stages with Rust have no Debian of their own.
    [ -e "$from/$source" ] || from=''
    if [ -d "$from/$source" ]; then
      mkdir -p "$target" && cp -a "$from/$source/." "$target/"
    else
      [[ $target != */ ]] || mkdir -p "$target"
      cp -a "$from/$source" "$target"
    fi
  done
}
words() { python3 -c 'import json, sys; print("\n".join(json.loads(sys.argv[1])))' "$1"; }   # ["a", "b"]: a line each

while read -r instruction rest; do
  echo "==> $instruction $rest" | cut -c1-140
  case $instruction in
    FROM)
      base=${rest%%:*} stage=image workdir=/ variables=()
      if [[ $rest = *' AS '* ]]; then stage=${rest##* AS }; fi
      case $rest in
        debian:12.*) debootstrap --variant=minbase bookworm "$images/$stage" >"$images/debootstrap.log" || die "see $images/debootstrap.log" ;;
        rust:*) mkdir -p "$images/$stage" ;;
        *) die "it is not known here how to begin from $rest" ;;
      esac ;;
    WORKDIR) workdir=$rest; mkdir -p "$images/$stage$workdir" ;;
    ENV) variables+=("$rest") ;;
    COPY) read -ra parts <<<"$rest"; copy "${parts[@]}" ;;
    RUN) run "$rest" ;;
    USER) user=$rest ;;
    HEALTHCHECK) check=$(words "${rest##* CMD }") ;;
    ENTRYPOINT) entrypoint=$(words "$rest") ;;
    EXPOSE | CMD) ;;
    *) die "it is not known here what $instruction means" ;;
  esac
done < <(sed -e '/^#/d' Dockerfile | sed -e ':again' -e '/\\$/{N;s/\\\n//;b again' -e '}' | sed '/^$/d')

echo "==> the image"
du -sh "$images/image"
[ "$user" != 0 ] || die "the image runs as root"
# In the image, as its user, with the settings of this shell.
inside=(chroot --userspec="$user:$user" "$images/image" env PATH=/usr/local/bin:/usr/bin:/bin)
"${inside[@]}" "$entrypoint" --version
running=''
trap '[ -z "$running" ] || kill "$running" 2>/dev/null || true' EXIT
healthy() { # CHECK…: waits until the check succeeds or the program ends
  for _ in $(seq 60); do
    if timeout 5 "${inside[@]}" "$@" 2>/dev/null; then echo "    healthy: $*"; return; fi
    kill -0 "$running" 2>/dev/null || die "the program has ended"
    sleep 1
  done
  die "not healthy: $*"
}
try() { # CHECK COMMAND: starts the program until the check succeeds, and ends it
  local test
  read -ra test <<<"$1"
  "${inside[@]}" "$entrypoint" "$2" & running=$!
  healthy "${test[@]}"
  kill $running
  wait $running || die "$2 did not end in good order"
  running=''
}
SECKILL_DEV=1 SECKILL_SANDBOX__BIND=127.0.0.1:18180 SECKILL_SANDBOX__DATA_FILE=/data/bank.jsonl \
  try "$check 18180 /healthz" channel-sandbox
if [ -n "${REDIS_URL:-}" ] && [ -n "${DATABASE_URL:-}" ] && [ -n "${AMQP_URL:-}" ]; then
  "${inside[@]}" "$entrypoint" migrate
  SECKILL_HTTP__BIND=127.0.0.1:8080 try "$check" serve
fi
echo "every step of the Dockerfile was carried out"
