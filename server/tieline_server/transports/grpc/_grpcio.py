"""The private names of grpcio and its packages that this server uses; no other module does.

``test_grpcio`` fails where a release no longer has one of them, or has it with another meaning.
"""

from typing import Any

from grpc_health.v1 import health


class Health(health.aio.HealthServicer):
    """The library's, but one watcher that takes nothing keeps no news from other clients.

    The library sets a status once every watcher of it lets go of a lock that each holds while it
    writes (grpc/grpc#22028). Its type stubs know neither of the two names.
    """

    async def _set(self, service: str, status: Any) -> None:
        self._server_status[service] = status  # type: ignore[attr-defined]
        await super()._set(service, status)  # type: ignore[misc]
