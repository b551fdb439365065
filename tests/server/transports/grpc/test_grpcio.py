"""The private names of grpcio's packages are there, and mean what they meant."""

import asyncio
from typing import Any

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from tieline_server.transports.grpc._grpcio import Health


async def test_a_watcher_that_takes_nothing_keeps_no_status_from_those_who_ask() -> None:
    health: Any = Health()
    asked = HealthCheckRequest(service="s")
    await health.set("s", HealthCheckResponse.SERVING)
    # As a watcher holds it while it writes.
    async with health._server_watchers["s"]:
        telling = asyncio.ensure_future(health.set("s", HealthCheckResponse.NOT_SERVING))
        await asyncio.sleep(0)
        assert not telling.done()
        answer = await health.Check(asked, None)
    await telling
    assert answer.status == HealthCheckResponse.NOT_SERVING
