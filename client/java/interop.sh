#!/bin/sh
# interop.sh SCENARIOS.json TARGETS.json [SCENARIO]: builds the runner and runs it.
set -eu
here=$(dirname "$0")
make --silent --directory="$here" interop >&2
exec java -cp "$here/target/test-classes:$here/target/classes:$(cat "$here/target/classpath")" \
	dev.tieline.interop.Runner "$@"
