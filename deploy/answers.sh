#!/bin/bash
# Asks this machine for a page: answers [PORT [PATH]]. Exits with 0 if the status is 200. The image's health checks use it. bash
# itself opens the connection, so the image needs no HTTP client. The caller bounds the time.
set -eu
exec 3<>"/dev/tcp/127.0.0.1/${1:-8080}"
printf 'GET %s HTTP/1.0\r\n\r\n' "${2:-/readyz}" >&3
read -r _ status _ <&3
[ "$status" = 200 ]
