"""A line to a scripted server, for the length of a test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.client.servicer import Script, serving
from tieline_client.aio import Connection, ResponseStream, connect
from tieline_client.transports import Options


@asynccontextmanager
async def connected(script: Script, **options: Any) -> AsyncIterator[Connection]:
    """A connection to a server that plays the script; then no task may be left."""
    async with serving(script) as address:
        async with connect(f"grpc://{address}", options=Options(**options)) as connection:
            yield connection
        assert ours() == []


def ours() -> list[str]:
    return [
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("tieline")
    ]


async def collect(stream: ResponseStream, types: list[str]) -> None:
    """Reads a stream and keeps the types of its events, also of those before an exception."""
    async for event in stream:
        types.append(event.type)
