# shellcheck shell=bash
# Runs that need a set of servers for themselves: the tests, the fault suite and the benchmark.

lock_run() { # SET: takes the set's lock, which is held until this script ends
  exec 9>".dev/$1.lock"
  flock -n 9 || die "another run of this kind is under way in this folder: wait until it has ended"
  unset "${!SECKILL_@}"                          # a run chooses its own settings
}
start_empty() { # SET: starts the set's private servers without the data of an earlier run
  local servers
  use "$1"                                       # again: the installation of PostgreSQL has added its user
  down redis pg mq                               # left over if an earlier run was killed
  wipe
  mapfile -t servers < <(private_servers)
  up "${servers[@]}"
}
need_room() { # GB: a full disk would look like a hundred other faults
  local free; free=$(df --output=avail --block-size=GB . | tail -1)
  ((${free%GB} >= $1)) || die "only$free of disk are free here, and $1 are needed"
}
verdict() { # SET WHAT EXIT-CODE BEGIN: stops the servers and says how the run ended
  trap - EXIT
  use "$1"
  down redis pg mq
  if [ "$3" = 0 ]; then echo "==> PASSED: $2, in $(since "$4")"; else echo "==> FAILED, after $(since "$4"): see above"; fi
}
