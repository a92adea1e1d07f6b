# shellcheck shell=bash
# Refreshes .sqlx. With SQLX_OFFLINE=false the query macros ask the database about each statement, and write the answers to
# SQLX_OFFLINE_DIR. This needs a scratch database with all migrations, and a compilation of all code.

apply_migrations() { # each in a transaction of its own, as `seckill migrate` does
  local file
  for file in migrations/*.sql; do sql -q -1 -d seckill_prepare -f "$file" || return; done
}
prepare() {
  local fresh=$TOP/.dev/prepare files=()
  need_rust
  unset DATABASE_URL                             # the scratch database is never created on the user's own server
  ensure cc pg
  use run
  up pg
  rm -rf "$fresh"; mkdir "$fresh"
  sql -d postgres -c 'SET client_min_messages = warning' -c 'DROP DATABASE IF EXISTS seckill_prepare WITH (FORCE)' \
    -c 'CREATE DATABASE seckill_prepare'
  step "applying the migrations" "The wrong statement is above" apply_migrations
  touch -c crates/postgres/src/lib.rs            # cargo does not notice that the database has changed
  DATABASE_URL=${PRIVATE_POSTGRES%/*}/seckill_prepare SQLX_OFFLINE=false SQLX_OFFLINE_DIR=$fresh \
    step "asking PostgreSQL about every query" ".sqlx is unchanged" cargo check --locked --workspace --all-targets
  files=("$fresh"/*.json)
  [ -e "${files[0]}" ] || die "no query was compiled: .sqlx is unchanged"
  rm -rf .sqlx
  mv "$fresh" .sqlx
  echo "    .sqlx has ${#files[@]} queries"
}
