#!/bin/sh
# Runs the scenarios: interop.sh SCENARIOS.json TARGETS.json [NAME]. TRANSPORT=grpc-js is the other
# transport.
here=$(dirname "$0")
make --no-print-directory -C "$here" interop >&2 || exit 1
exec node "$here/dist/interop/runner.js" "$@"
