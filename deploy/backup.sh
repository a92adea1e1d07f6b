#!/usr/bin/env bash
# Dumps the database of Seckill into a file: deploy/backup.sh FILE. The service keeps running.
#
# DATABASE_URL names the database. The file appears only when it is complete: it gets its name after it was written and read again.
# docs/runbooks/backup-and-restore.md explains the uses and the limits of a dump.
set -euo pipefail
umask 077                                        # it holds what docs/security.md says of a dump

die() { echo "backup.sh: $1" >&2; exit 1; }
[ $# = 1 ] || die "usage: backup.sh FILE"
[ -n "${DATABASE_URL:-}" ] || die "DATABASE_URL is missing: set it to the address that the service has"
# shellcheck disable=SC1091 # it is checked by itself
. "$(dirname "$0")/passwords.sh"
[ ! -e "$1" ] || die "$1 exists: choose another name, so that no older dump is lost"
partial=$1.partial
trap 'rm -f "$partial"' EXIT

# Bounds the wait for a lock: a migration may hold it, and later transactions would wait behind this one.
pg_dump --format=custom --no-owner --no-privileges --lock-wait-timeout=10s --file="$partial" --dbname="$DATABASE_URL"
pg_restore --list "$partial" >/dev/null || die "the dump cannot be read again: is the disk full?"
sync "$partial"
mv "$partial" "$1"
echo "$1: $(stat -c %s "$1") bytes"
