#!/usr/bin/env bash
# Restores the database of Seckill from a dump, and empties Redis: deploy/restore.sh FILE. Stop all `serve`, `work` and `publish`
# first. docs/runbooks/backup-and-restore.md has the steps before and after.
#
# Set DATABASE_URL and REDIS_URL as for the service; also SECKILL_REDIS__PREFIX and SECKILL_REDIS__CA_FILE if it has them. The dump is
# restored beside the present database, which is kept under another name. Until the last step only Redis has changed: it is empty, and
# is refilled from any database. So the script can be stopped at any line, and repeated.
set -euo pipefail

die() { echo "restore.sh: $1" >&2; exit 1; }
[ $# = 1 ] || die "usage: restore.sh FILE"
file=$1
[ -n "${DATABASE_URL:-}" ] || die "DATABASE_URL is missing: set it to the address that the service has"
[ -n "${REDIS_URL:-}" ] || die "REDIS_URL is missing: set it to the address that the service has"
# shellcheck disable=SC1091 # it is checked by itself
. "$(dirname "$0")/passwords.sh"
prefix=${SECKILL_REDIS__PREFIX:-sk:}
[[ $prefix =~ ^[A-Za-z0-9:._-]+$ ]] || die "the prefix '$prefix' has characters that match other keys: delete ours by hand"

# postgres://user@host/NAME?terms
plain=${DATABASE_URL%%\?*} terms=${DATABASE_URL#"${DATABASE_URL%%\?*}"}
server=${plain%/*} name=${plain##*/}
[[ $name =~ ^[a-z_][a-z0-9_]{0,39}$ ]] || die "the database is called '$name': this script knows names of a-z, 0-9 and _ only"
[ "$name" != postgres ] || die "the database is called postgres, from which this script works: restore by hand"
export PGOPTIONS="${PGOPTIONS:-} -c statement_timeout=0 -c client_min_messages=warning"   # a time-out of our role is not meant for this
on() { # DATABASE ARGS…: psql there
  local database=$1; shift
  psql -XAtq -v ON_ERROR_STOP=1 -d "$server/$database$terms" "$@"
}

made=$(pg_restore --list "$file" | sed -n 's/^; Archive created at //p') || die "$file cannot be read"
[ -n "$made" ] || die "$file is not a dump of deploy/backup.sh"
[ "$(redis PING)" = PONG ] || die "Redis does not answer at REDIS_URL"
# A process that still runs would write data into Redis that the dump does not have.
living=$(on postgres -c "SELECT count(*) FROM pg_stat_activity WHERE datname = '$name' AND application_name = 'seckill'")
[ "$living" = 0 ] || die "$living connections of seckill are open: end all serve, work and publish first"

echo "restoring the dump of $made beside the present database"
on postgres -c "DROP DATABASE IF EXISTS ${name}_restoring" -c "CREATE DATABASE ${name}_restoring"
pg_restore --exit-on-error --no-owner --no-privileges --jobs=2 --dbname="$server/${name}_restoring$terms" "$file"
# Numbers that were used after the dump must not be used again, not even after an earlier restore: sales, and the ids of messages that
# others remember. They continue from the time in microseconds: no system has written rows as fast as that. Epochs rise as well, so a
# process or a Redis from before the restore is ignored (docs/protocol.md, rules 3 and 11). Sessions are deleted, because their accounts
# may have been disabled since. No instance is alive.
on "${name}_restoring" -v made="$made" --single-transaction -f - <<'SQL' >/dev/null
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, greatest(coalesce(last_value, 0) + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
FROM pg_sequences WHERE schemaname = 'public';
UPDATE sale_epochs SET epoch = epoch + extract(epoch FROM clock_timestamp())::bigint, run_id = NULL;
DELETE FROM sessions;
DELETE FROM instances;
INSERT INTO audit_log (actor, action, subject, details)
VALUES ('restore.sh', 'restore', 'database', jsonb_build_object('dump', :'made'));
SQL
# A role that does not own the system tables gets a message for each one that it may not read.
on "${name}_restoring" -c "SET client_min_messages = error" -c ANALYZE

echo "emptying Redis: the keys that begin with $prefix"
redis --scan --pattern "$prefix*" | while mapfile -t -n 500 keys && [ ${#keys[@]} -gt 0 ]; do redis UNLINK "${keys[@]}" </dev/null >/dev/null; done
[ -z "$(redis --scan --pattern "$prefix*" | head -n 1)" ] || die "Redis keeps its keys: is REDIS_URL the master, and may we delete there?"

# Both names change in one transaction.
kept=${name}_before_$(date -u +%Y%m%d%H%M%S)
swap=()
if [ -n "$(on postgres -c "SELECT 1 FROM pg_database WHERE datname = '$name'")" ]; then
  swap=(-c "ALTER DATABASE $name RENAME TO $kept")
fi
on postgres --single-transaction "${swap[@]}" -c "ALTER DATABASE ${name}_restoring RENAME TO $name"
echo "restored${swap[0]:+; what was there before is the database $kept}"
