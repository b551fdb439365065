"""Drives the core with asyncio: requests in, effects carried out, events out."""

from tieline_server.runtime.cancels import heed_cancels
from tieline_server.runtime.compact import compact
from tieline_server.runtime.connection_driver import ConnectionDriver
from tieline_server.runtime.jobs import server_error
from tieline_server.runtime.local_peer import LocalPeer
from tieline_server.runtime.preparing import count_input_tokens, prepare
from tieline_server.runtime.reading import LAST, cancel, events_of, forget, not_found
from tieline_server.runtime.recorder import lasts
from tieline_server.runtime.running import PATIENCE, Running, ended
from tieline_server.runtime.services import INTERNAL, SERVER_ERROR, Services

__all__ = [
    "INTERNAL",
    "LAST",
    "PATIENCE",
    "SERVER_ERROR",
    "ConnectionDriver",
    "LocalPeer",
    "Running",
    "Services",
    "cancel",
    "compact",
    "count_input_tokens",
    "ended",
    "events_of",
    "forget",
    "heed_cancels",
    "lasts",
    "not_found",
    "prepare",
    "server_error",
]
