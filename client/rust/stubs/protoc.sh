#!/bin/sh
# The protoc that the repository pins (`make protos` brings it), as one program for PROTOC.
exec "$(dirname "$0")/../../../.venv-protos/bin/python" -m grpc_tools.protoc "$@"
