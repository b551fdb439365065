#!/bin/sh
# interop.sh SCENARIOS.json TARGETS.json [SCENARIO]: builds the runner and runs it.
set -eu
make --silent --directory="$(dirname "$0")" interop >&2
exec "$(dirname "$0")/target/debug/tieline-interop" "$@"
