#!/bin/sh
# `docker compose up --wait` that says, when it fails, which service is not ready, why, and what it logged last.
#   deploy/up.sh [--build] [--scale weather_agent=4] [any other option of `docker compose up`]
#   UP_SECONDS: longest time until all are ready; 300 when not given.
set -u
timeout "${UP_SECONDS:-300}" docker compose up --detach --wait "$@" && exit 0
code=$?
[ "$code" -ne 124 ] || echo "not ready within ${UP_SECONDS:-300} s (UP_SECONDS)" >&2

shape='{{.Name}} {{.State.Status}}{{with .State.Health}} {{.Status}}{{end}}, started again {{.RestartCount}} times'
for container in $(docker compose ps --all --quiet); do
    state=$(docker inspect --format "$shape" "$container")
    case $state in
    *" running healthy,"*) continue ;;
    *" created"*) continue ;; # waits for another
    esac
    printf '\nnot ready: %s\n' "${state#/}"
    docker inspect --format '{{with .State.Health}}{{range .Log}}{{println .Output}}{{end}}{{end}}' "$container" | grep . | tail -n 1
    docker logs --tail 20 "$container" 2>&1
done >&2
exit "$code"
