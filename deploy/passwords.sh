# shellcheck shell=bash
# To be sourced. Takes the passwords out of DATABASE_URL and REDIS_URL, and puts them where pg_dump, pg_restore, psql and redis-cli look
# for them. Every user of a machine can read the arguments of all programs, but only its own user can read a program's environment.
#
# `redis` is redis-cli with the service's address, user and certificate authority.

decoded() { local text=${1//\\/\\\\}; printf '%b' "${text//%/\\x}"; }   # TEXT, a part of an address
if [[ ${DATABASE_URL:-} =~ ^(postgres(ql)?://[^:@/?]*):([^/?]*)(@.*)$ ]]; then
  PGPASSWORD=$(decoded "${BASH_REMATCH[3]}") DATABASE_URL=${BASH_REMATCH[1]}${BASH_REMATCH[4]}
  export PGPASSWORD DATABASE_URL
fi
redis_user=()
if [[ ${REDIS_URL:-} =~ ^(rediss?://)([^:@/?]*):([^/?]*)@(.*)$ ]]; then
  [ -z "${BASH_REMATCH[2]}" ] || redis_user=(--user "$(decoded "${BASH_REMATCH[2]}")")
  REDISCLI_AUTH=$(decoded "${BASH_REMATCH[3]}") REDIS_URL=${BASH_REMATCH[1]}${BASH_REMATCH[4]}
  export REDISCLI_AUTH REDIS_URL
fi
redis() { redis-cli -e -u "$REDIS_URL" "${redis_user[@]}" ${SECKILL_REDIS__CA_FILE:+--cacert "$SECKILL_REDIS__CA_FILE"} "$@"; }
if [[ ${DATABASE_URL:-} =~ [?\&](ssl)?password= ]]; then
  echo "DATABASE_URL has a password behind the question mark: write it as postgres://user:password@host/name" >&2
  return 1
fi
